"""Finding the object that a TF1 name refers to, or else advice."""

import dataclasses
import enum
import functools
import importlib
import importlib.util
import inspect
import pathlib
import sys
import types
from typing import Any

from keras_tpu_estimator.base.common.pickling import reduce_error
from keras_tpu_estimator.tf1.names.catalogue import (
    ancestors,
    below,
    canonical,
    catalogue,
    path_of,
)
from keras_tpu_estimator.tf1.shims.old_libraries import (
    accept_overrides_without_mask,
    fuse_only_images,
)
from keras_tpu_estimator.tf1.shims.stand_ins import StandIn, stored

_PACKAGE = str(pathlib.Path(__file__).parents[2])


def users_line() -> str:
    """Returns the place of the calling user code, such as 'Used in model.py, line 12.'.

    It is "" if no user code is running.
    """
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        # `<frozen runpy>` runs this package's commands, or a user's module.
        is_pythons = name.startswith("<frozen ") or "importlib" in name
        if not name.startswith(_PACKAGE) and not is_pythons:
            return f"Used in {name}, line {frame.f_lineno}."
        frame = frame.f_back  # type: ignore[assignment]
    return ""


_EXTRA = {"tf_keras": "tf-keras", "tf_slim": "tf_slim"}
# Successors of packages of `tf.contrib` that this package does not depend on.
_OPTIONAL = {"tensorboard", "tensorflow_gan"}
# Special names of modules that scripts read.
_VERSIONS = ("__compiler_version__", "__git_version__", "__version__")


class MissingNameError(AttributeError):
    """A TensorFlow 1 name that neither TensorFlow nor this package has.

    Attributes:
        advice: The code to write instead.
    """

    __reduce__ = reduce_error

    def __init__(self, path: str, advice: str):
        self.advice = advice
        parts = (
            f"TensorFlow has no `tf.{path}`, and it is not supplied here.",
            users_line(),
            advice,
        )
        super().__init__(" ".join(part for part in parts if part))


class _BrokenLibrary(ModuleNotFoundError):
    """An installed library whose dependency is not installed."""


class LookAlike(StandIn):
    """A module of TF1 with supplied names, and TensorFlow's for all others.

    Its `path` lacks 'tf.' and is "" for `tf` itself.
    """

    # `import` reads this attribute of packages.
    __path__: list[str] = []

    def __init__(self, path: str):
        super().__init__(f"tensorflow.{path}" if path else "tensorflow")
        stored(self)["_kte_path"] = path

    def __getattr__(self, name: str) -> Any:
        """Returns the object with this name, looked up on first use."""
        if name == "__all__":
            return dir(self)  # This is for `import *`.
        if name == "__file__":
            return getattr(_behind(self._kte_path), name)
        if name.startswith("__") and name not in _VERSIONS:
            raise AttributeError(name)
        value = resolve(below(self._kte_path, name))
        stored(self)[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        """Keeps a function when `import` sets a module of the same name."""
        entry = catalogue().entries.get(below(self._kte_path, name))
        if not (entry and entry.module and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """Returns all names, supplied ones and TensorFlow's."""
        paths = catalogue().packages | catalogue().supplied
        prefix = below(self._kte_path, "")
        supplied = {n.removeprefix(prefix) for n in paths if n.startswith(prefix)}
        public = catalogue().public.get(self._kte_path)
        if public:
            originals = {*dir(resolve(public))} - {"python"}
        else:
            originals = {*dir(_behind(self._kte_path))}
        names = supplied | originals
        return sorted(n for n in names if n[:1] != "_" and n.isidentifier())

    def __repr__(self) -> str:
        return f"<module {self.__name__!r} as TF1 had it>"

    def __reduce__(self) -> Any:
        """Pickles the module by its name."""
        return resolve_module, (self._kte_path,)


@functools.cache
def resolve(path: str) -> Any:
    """Returns the supplied object or TensorFlow's for a TF1 name without 'tf.'.

    The name is "" for `tf` itself. A name without such an object raises a
    `MissingNameError`, and a supplied name whose package is not installed raises an
    ImportError.
    """
    if path != canonical(path):
        return resolve(canonical(path))
    entry = catalogue().entries.get(path)
    if entry and entry.missing:
        raise MissingNameError(path, entry.missing)
    if entry and entry.source:
        return _target(path, entry.source)
    if path in catalogue().packages:
        return LookAlike(path)
    try:
        return _of_parent(*path.rpartition(".")[::2])
    except MissingNameError:
        if path in catalogue().modules:
            return LookAlike(path)
        raise


def resolve_module(path: str) -> Any:
    """Returns the module that a name imports, which differs for some functions.

    >>> name = "contrib.framework.python.ops.arg_scope"
    >>> resolve(name).__name__, resolve_module(name).__name__
    ('arg_scope', 'tf_slim.ops.arg_scope')
    """
    path = canonical(path)
    entry = catalogue().entries.get(path)
    if entry and entry.module:
        return _target(path, entry.module)
    return resolve(path)


def is_supplied(path: str) -> bool:
    """Returns whether a name is supplied without TensorFlow's own object."""
    path = canonical(path)
    while path:
        if path in catalogue().supplied:
            return True
        if path in catalogue().packages and _behind(path) is None:
            return True
        path, _, _ = path.rpartition(".")
        module = catalogue().of_module(path)
        if module and module.source and _is_installed(module.source):
            return not module.source.startswith("tensorflow.")
    return False


def is_known(path: str) -> bool:
    """Returns whether a name is in a table, or is a module that contains such names."""
    path = canonical(path)
    return path in catalogue().packages | catalogue().supplied


def _target(path: str, target: str) -> Any:
    """Returns the object that a table names as a source."""
    top, _, source_path = target.partition(".")
    if top == "tf":
        return resolve(source_path)
    module, _, names = target.partition(":")
    value = _imported(path, module)
    for name in filter(None, names.split(".")):
        value = _attribute(value, name, path)
    return value


def _imported(path: str, module: str) -> Any:
    top = module.partition(".")[0]
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != top and top in {*_EXTRA, *_OPTIONAL}:
            raise _BrokenLibrary(
                f"`tf.{path}` is supplied by {_EXTRA.get(top, top)}, which needs "
                f"{error.name}. It is not installed. Run `pip install {error.name}`.",
                name=error.name,
            ) from error
        if top not in _EXTRA:
            raise
        raise ImportError(
            f"`tf.{path}` is supplied by {_EXTRA[top]}, which is not "
            f"installed. {users_line()} Run `pip install "
            "'keras-tpu-estimator[tf1]'`."
        ) from error
    if top == "tf_keras":
        accept_overrides_without_mask()
        fuse_only_images()
        _supply_estimators()
    return imported


def _supply_estimators() -> None:
    """Lets tf-keras find the names of `tf.keras.estimator` in the tables.

    Its own function needs TensorFlow's estimators.
    """
    for version in ("_v1", "_v2"):
        keras = importlib.import_module(f"tf_keras.api.{version}.keras")
        # A release without the module gets an empty one.
        if not hasattr(keras, "estimator"):
            vars(keras)["estimator"] = types.ModuleType(f"{keras.__name__}.estimator")
        names = vars(keras.estimator)
        names.pop("model_to_estimator", None)
        names["__getattr__"] = _of_keras_estimator


def _of_keras_estimator(name: str) -> Any:
    """Returns the name of `tf.keras.estimator`; modules call it `__getattr__`."""
    path = f"keras.estimator.{name}"
    if path not in catalogue().supplied:
        raise AttributeError(f"`tf.{path}` does not exist.")
    return resolve(path)


def _of_parent(parent: str, name: str) -> Any:
    """Returns an attribute of a module or class that is looked up first."""
    if parent in catalogue().public:
        return _made_public(below(parent, name), catalogue().public[parent])
    owner = resolve(parent)
    if not isinstance(owner, LookAlike):
        return _attribute(owner, name, below(parent, name))
    if owner._kte_path != parent:
        return _made_public(below(parent, name), owner._kte_path)
    return _of_the_rest(parent, name)


def _made_public(path: str, module: str) -> Any:
    """Returns the object that another module makes public under the same name."""
    public = below(module, path.rpartition(".")[2])
    try:
        return resolve(public)
    except MissingNameError as error:
        is_general = error.advice == _advice("")
        advice = _advice(path) if is_general else error.advice
        raise MissingNameError(path, advice) from None


def _of_the_rest(parent: str, name: str) -> Any:
    """Returns an object that is in no table, but whose module is in one."""
    path, behind = below(parent, name), _behind(parent)
    if behind is None:
        raise MissingNameError(path, _advice(path))
    if not parent and name in _folders_of_tensorflow():
        return importlib.import_module(f"tensorflow.{name}")
    return _attribute(behind, name, path)


@functools.cache
def _folders_of_tensorflow() -> frozenset[str]:
    """Returns TensorFlow's packages that are not attributes of `tf.compat.v1`."""
    import tensorflow as tf

    folder = pathlib.Path(tf.__file__).parent
    names = {file.parent.name for file in folder.glob("*/__init__.py")}
    return frozenset(n for n in names if not hasattr(tf.compat.v1, n))


def _behind(path: str) -> Any:
    """Returns the module with the names that are in no table, or `None`."""
    entry = catalogue().of_module(path)
    if entry and entry.source:
        return _target(path, entry.source) if _is_installed(entry.source) else None
    above, _, name = path.rpartition(".")
    owner = _behind(above) if path else None
    module = None if owner is None else _attribute_or_none(owner, name)
    # Modules that were installed have no other module behind them.
    return None if isinstance(module, LookAlike) else module


def _is_installed(source: str) -> bool:
    """Returns whether a source can be imported, if it is an optional library."""
    top = source.partition(".")[0].partition(":")[0]
    try:
        return top not in _OPTIONAL or importlib.util.find_spec(top) is not None
    except ValueError:
        # A script's stub in `sys.modules` has no specification.
        return True


def _advice(path: str) -> str:
    """Returns the advice of the closest module that has some."""
    entries = map(catalogue().of_module, reversed(ancestors(path)))
    return next((e.missing for e in entries if e and e.missing), "")


def _attribute(owner: Any, name: str, path: str) -> Any:
    value = _attribute_or_none(owner, name)
    if value is None and not hasattr(owner, name):
        raise MissingNameError(path, _advice(path))
    return value


def _attribute_or_none(owner: Any, name: str) -> Any:
    """Returns an attribute, or imports a module of that name."""
    try:
        return getattr(owner, name)
    except AttributeError:
        pass
    if not isinstance(owner, types.ModuleType):
        return None
    module = f"{owner.__name__}.{name}"
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
    return None


class Status(enum.Enum):
    """The origin of a name.

    Attributes:
        SUPPLIED: TensorFlow has removed it, and this package supplies it.
        TENSORFLOW: TensorFlow still has it.
        MISSING: Neither has it.
    """

    SUPPLIED = "supplied"
    TENSORFLOW = "tensorflow"
    MISSING = "missing"


@dataclasses.dataclass(frozen=True)
class Name:
    """The result of looking up a name.

    Attributes:
        path: The name, with 'tf.' at its start.
        status: The origin of the name.
        advice: The code to write instead if the name is missing, or "".
    """

    path: str
    status: Status
    advice: str = ""


def lookup(dotted_name: str) -> Name:
    """Looks up a TF1 name, as `python -m keras_tpu_estimator tf1` does.

    Attributes of objects other than modules and classes are ignored:
    'tf.flags.FLAGS.anything' has the result of 'tf.flags.FLAGS'.

    Args:
        dotted_name: A name such as 'tf.contrib.layers.layer_norm', or with 'tensorflow'
            or 'tensorflow.compat.v1' instead of 'tf'.

    Returns:
        A `Name`.

    Example:

    >>> lookup("tf.train.Saver").status.value
    'tensorflow'
    >>> lookup("tensorflow.compat.v1.estimator.ModeKeys").status.value
    'supplied'
    >>> lookup("tf.contrib.cloud.BigtableClient").advice
    'Read the data with tf.data.TFRecordDataset, or with a generator.'
    """
    path = path_of(dotted_name)
    if path is None:
        path = canonical(f"{dotted_name}.".removeprefix("tf.").strip("."))
    if not path:
        return Name("tf", Status.SUPPLIED)
    try:
        return _looked_up(path)
    except _BrokenLibrary as error:
        return Name(f"tf.{path}", Status.MISSING, str(error))


def _looked_up(path: str) -> Name:
    """Looks up a canonical path; a library without a dependency raises an error."""
    shown = f"tf.{path}"
    parts = path.split(".")
    for number in range(1, len(parts) + 1):
        part = ".".join(parts[:number])
        try:
            resolved = resolve(part)
        except MissingNameError as error:
            return Name(shown, Status.MISSING, error.advice)
        except ImportError as error:
            if isinstance(error, _BrokenLibrary) or not is_supplied(part):
                raise
            return Name(shown, Status.SUPPLIED, str(error))
        if not (inspect.ismodule(resolved) or inspect.isclass(resolved)):
            break
    is_ours = is_supplied(path)
    return Name(shown, Status.SUPPLIED if is_ours else Status.TENSORFLOW)
