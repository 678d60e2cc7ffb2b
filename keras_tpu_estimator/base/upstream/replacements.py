"""Functions of other libraries that are replaced in blocks of this package.

A block is a `with` statement around a trace, an export or a call. While at least one
block is open, a dispatcher stands in the place of the library's function. In the
contexts of open blocks it calls the replacement, and elsewhere, such as on the user's
other threads, the library's function. After the last block the library has its own
function again.
"""

import contextlib
import contextvars
import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from keras_tpu_estimator.base.upstream.private_names import (
    PrivateName,
    UnsupportedVersionError,
    run_apart,
)

# Receives the library's function and the arguments of a call.
Behaviour: TypeAlias = Callable[..., Any]


class Replacement:
    """A function of a library that blocks replace.

    Args:
        target: The function. The purpose says what the library's own function does that
            this package cannot use.
        reached_by: A public call that must reach the function. It runs once, before the
            first block, so that a function that the library no longer calls is an
            error. Defaults to `None`, for a function whose absence raises an error or
            is only slower.
    """

    def __init__(
        self, target: PrivateName, reached_by: Callable[[], object] | None = None
    ):
        self.target = target
        self._reached_by = reached_by
        self._behaviour: contextvars.ContextVar[Behaviour | None] = (
            contextvars.ContextVar(target.paths[0], default=None)
        )
        self._lock = threading.RLock()
        self._open_blocks = 0
        self._is_verified = reached_by is None

    @property
    def function(self) -> Any:
        """The function, or what replaces it in the current block."""
        return getattr(self.target.owner, self.target.name)

    @contextlib.contextmanager
    def block(self, behaviour: Behaviour) -> Iterator[None]:
        """Calls `behaviour(function, ...)` instead of the function in a `with` block.

        The innermost block of a context decides.
        """
        self._verify()
        self._enter()
        token = self._behaviour.set(behaviour)
        try:
            yield
        finally:
            self._behaviour.reset(token)
            self._leave()

    def _verify(self) -> None:
        """Checks once that the library calls the function."""
        with self._lock:
            if self._is_verified:
                return
            self._is_verified = True
        if not isinstance(run_apart(self._arrive), _ArrivedError):
            self._is_verified = False
            target = self.target
            raise UnsupportedVersionError(
                target.library, target.paths[0], target.purpose
            )

    def _arrive(self) -> None:
        """Makes the public call; raises an error when it arrives at the function."""

        def arrived(*args: Any, **kwargs: Any) -> None:
            raise _ArrivedError

        if self._reached_by is not None:
            with self.block(arrived):
                self._reached_by()

    def _enter(self) -> None:
        # A missing function is an error of each block, so it must not count as open.
        owner, name = self.target.owner, self.target.name
        with self._lock:
            self._open_blocks += 1
            if self._open_blocks > 1:
                return
            self._is_inherited = name not in vars(owner)
            self._original = getattr(owner, name)
            self._installed = self._stand_in(self._original)
            setattr(owner, name, self._installed)

    def _leave(self) -> None:
        with self._lock:
            self._open_blocks -= 1
            if self._open_blocks:
                return
            owner, name = self.target.owner, self.target.name
            # Another library may have wrapped the dispatcher. From now on, that calls
            # the function.
            if vars(owner).get(name) is not self._installed:
                return
            if self._is_inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, self._original)

    def _stand_in(self, function: Any) -> Any:
        """Returns what stands in the place of the library's function."""
        current = self._behaviour

        @functools.wraps(function)
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            behaviour = current.get()
            if behaviour is None or self._installed is not dispatch:
                return function(*args, **kwargs)
            return behaviour(function, *args, **kwargs)

        # Keras reads signatures, also by `inspect.getfullargspec`, which does not look
        # behind wrappers.
        vars(dispatch)["__signature__"] = inspect.signature(function)
        return dispatch


class ModuleReplacement(Replacement):
    """A module that blocks replace in one of the modules that import it.

    The behaviour of a block receives the imported module, and returns the object whose
    attributes are used instead.
    """

    def _stand_in(self, value: Any) -> Any:
        return _Module(value, self._behaviour)


class PropertyReplacement(Replacement):
    """A property that blocks replace; a behaviour receives its getter and an object."""

    def _stand_in(self, value: Any) -> Any:
        current = self._behaviour

        def dispatch(instance: Any) -> Any:
            behaviour = current.get()
            if behaviour is None:
                return value.fget(instance)
            return behaviour(value.fget, instance)

        return property(dispatch, doc=value.__doc__)


class _Module(types.ModuleType):
    """A stand-in for a module, whose attributes are those of the current block."""

    def __init__(
        self, module: Any, behaviour: contextvars.ContextVar[Behaviour | None]
    ):
        super().__init__(module.__name__, module.__doc__)
        self._module = module
        self._behaviour = behaviour

    def __dir__(self) -> list[str]:
        return dir(self._module)

    def __getattr__(self, name: str) -> Any:
        behaviour = self._behaviour.get()
        module = self._module
        return getattr(module if behaviour is None else behaviour(module), name)


class _ArrivedError(BaseException):
    """A call has arrived at a replaced function; no library catches this class."""
