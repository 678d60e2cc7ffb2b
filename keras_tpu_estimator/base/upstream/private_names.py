"""Private names of other libraries, each found and verified when it is first used.

A library may rename or move a private name in any release. Therefore the import of this
package needs none of them, and a missing one is an error only for the code that uses
it. A name that exists may also have lost its meaning. Where that would give wrong
numbers without an error, the name has a check, which runs once per process.
"""

import dataclasses
import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.base.common.pickling import reduce_error

# The last release of each library with which the tests passed.
LAST_TRIED = {
    "jax": "0.12.0.1",
    "keras": "3.16.0.dev2026102704",
    "tensorflow": "2.21.0",
    "tf_keras": "2.21.0",
}
_PARENTS = {"jaxlib": "jax"}
_PACKAGE = __name__.partition(".")[0]


class UnsupportedVersionError(ImportError):
    """An installed library lacks a private name that this package uses.

    Everything that does not need the name continues to work.

    Attributes:
        library: The library, such as "keras".
        private_name: The name that it lacks, or that has another meaning.
    """

    __reduce__ = reduce_error

    def __init__(self, library: str, private_name: str, purpose: str):
        library = _PARENTS.get(library, library)
        ours, last = installed_version(_PACKAGE), LAST_TRIED[library]
        super().__init__(
            f"{library} must have {private_name} as in {library} {last}, the last "
            f"release with which keras_tpu_estimator {ours} was tried. It "
            f"{purpose}. Received: {library} {installed_version(library)}. Install a "
            f"newer keras_tpu_estimator, or {library}<={last}."
        )
        self.library = library
        self.private_name = private_name


def installed_version(library: str) -> str:
    """Returns the version of a library that is installed here."""
    version: str = importlib.import_module(library).__version__
    return version


@dataclasses.dataclass(frozen=True)
class PrivateName:
    """A private function, class or module of a library.

    Attributes:
        purpose: What it is needed for, as a clause with a verb: "holds the masks".
        paths: Where releases have it, the newest first, such as "keras.src.tree.map".
    """

    purpose: str
    paths: tuple[str, ...]

    @functools.cached_property
    def value(self) -> Any:
        """The object with this name in the installed release."""
        for path in self.paths:
            value = _at(path)
            if value is not None:
                return value
        raise UnsupportedVersionError(self.library, self.paths[0], self.purpose)

    @functools.cached_property
    def owner(self) -> Any:
        """The module or class that has the name."""
        for path in self.paths:
            owner = _at(path.rpartition(".")[0])
            if hasattr(owner, self.name):
                return owner
        raise UnsupportedVersionError(self.library, self.paths[0], self.purpose)

    @property
    def name(self) -> str:
        """The last part of the paths."""
        return self.paths[0].rpartition(".")[2]

    @property
    def library(self) -> str:
        """The library that has the name."""
        return self.paths[0].partition(".")[0]


def _at(path: str) -> Any:
    """Returns the module, or what a module contains, at a path; `None` if missing."""
    try:
        # A function may hide the module of the same name in its package.
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        # The error may be about another module that this one imports.
        if not path.startswith(str(error.name)):
            raise
    parent, _, name = path.rpartition(".")
    return getattr(_at(parent), name, None) if parent else None


@dataclasses.dataclass(frozen=True)
class PrivateAttribute:
    """A private attribute of the objects of a library's public class.

    Attributes:
        purpose: What it is needed for, as a clause with a verb.
        path: The class and the attribute, such as "keras.Variable._value".
        means: Returns whether the attribute has the meaning on which this package
            relies. Runs once per process, before the first use.
    """

    purpose: str
    path: str
    means: Callable[["PrivateAttribute"], bool] | None = None

    @property
    def name(self) -> str:
        """The name of the attribute."""
        return self.path.rpartition(".")[2]

    def get(self, instance: Any) -> Any:
        """Returns the attribute of an object."""
        self._verify()
        try:
            return getattr(instance, self.name)
        except AttributeError as error:
            raise self._error() from error

    def is_set(self, instance: Any) -> bool:
        """Returns whether an object already has the attribute."""
        self._verify()
        return hasattr(instance, self.name)

    def set(self, instance: Any, value: Any) -> None:
        """Sets the attribute of an object, which must have it."""
        self._verify()
        if not hasattr(instance, self.name):
            raise self._error()
        setattr(instance, self.name, value)

    def _verify(self) -> None:
        if self.means is not None and not _is_verified(self.means, self):
            raise self._error()

    def _error(self) -> UnsupportedVersionError:
        library = self.path.partition(".")[0]
        return UnsupportedVersionError(library, self.path, self.purpose)


_thread = threading.local()


def _is_verified(
    means: Callable[[PrivateAttribute], bool], attribute: PrivateAttribute
) -> bool:
    """Returns the result of a check, which itself may use attributes."""
    return getattr(_thread, "is_checking", False) or _result(means, attribute)


@functools.cache
def _result(
    means: Callable[[PrivateAttribute], bool], attribute: PrivateAttribute
) -> bool:
    def check() -> bool:
        _thread.is_checking = True
        return means(attribute)

    return run_apart(check) is True


@functools.cache
def run_once_apart(check: Callable[[], Any]) -> Any:
    """Returns the result of `run_apart`, which runs once per process."""
    return run_apart(check)


def run_apart(check: Callable[[], Any]) -> Any:
    """Returns the result of a function outside all traces, scopes and blocks.

    It runs on a new thread, where the state of Keras, JAX and this package is the
    initial one. An error is returned instead of raised.
    """
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(check())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, name="verification")
    thread.start()
    thread.join()
    return results[0]
