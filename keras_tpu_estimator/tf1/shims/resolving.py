"""Finding what is behind a name of TF1."""

import functools
import importlib
import pathlib
import types
from typing import Any

from keras_tpu_estimator.ground.base.pickling import reduce_error
from keras_tpu_estimator.tf1.names.aliases import canonical
from keras_tpu_estimator.tf1.names.catalogue import ancestors, below, catalogue
from keras_tpu_estimator.tf1.shims.callers import users_line
from keras_tpu_estimator.tf1.shims.old_moments import (
    accept_overrides_without_mask,
)

_EXTRA = {"tf_keras": "tf-keras", "tf_slim": "tf_slim"}
# Of the names that Python asks modules for, those that programs ask for, too.
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


class LookAlike(types.ModuleType):
    """A module of TF1: what is supplied of it, and TensorFlow's for the rest.

    Args:
        path: Its name without 'tf.'; empty for `tf` itself.
    """

    # Names that `import` asks packages for.
    __path__: list[str] = []

    def __init__(self, path: str):
        super().__init__(f"tensorflow.{path}" if path else "tensorflow")
        self.__dict__["_kte_path"] = path

    def __getattr__(self, name: str) -> Any:
        """What has this name, looked up when it is first used."""
        if name == "__all__":
            return dir(self)  # For `import *`.
        if name.startswith("__") and name not in _VERSIONS:
            raise AttributeError(name)
        value = resolve(below(self._kte_path, name))
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        """Keeps a function from a module of its name, which `import` sets."""
        entry = catalogue().entries.get(below(self._kte_path, name))
        if not (entry and entry.module):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """All names, supplied ones and TensorFlow's."""
        known = catalogue().packages | catalogue().supplied
        prefix = below(self._kte_path, "")
        here = {n.removeprefix(prefix) for n in known if n.startswith(prefix)}
        public = catalogue().public.get(self._kte_path)
        if public:
            others = {*dir(resolve(public))} - {"python"}
        else:
            others = {*dir(_behind(self._kte_path))}
        names = here | others
        return sorted(n for n in names if n[:1] != "_" and n.isidentifier())

    def __repr__(self) -> str:
        return f"<module {self.__name__!r} as TF1 had it>"


@functools.cache
def resolve(path: str) -> Any:
    """What is behind a name of TF1.

    Args:
        path: The name without 'tf.', such as 'contrib.tpu.TPUEstimator';
            empty for `tf` itself.

    Returns:
        What is supplied under that name, or what TensorFlow has there.

    Raises:
        MissingNameError: There is neither.
        ImportError: It is supplied by a package that is not installed.

    Example:

    >>> resolve("estimator.ModeKeys").TRAIN
    'train'
    >>> resolve("contrib.cloud.BigtableClient")
    Traceback (most recent call last):
    keras_tpu_estimator.errors.MissingNameError: ...
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
    """What is imported by a name, which is another thing for some functions.

    Args:
        path: The name without 'tf.'.

    Raises:
        MissingNameError: There is none.

    Example:

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
    """Whether TensorFlow's own has no part in a name.

    Args:
        path: The name without 'tf.'.

    Example:

    >>> is_supplied("estimator.ModeKeys.TRAIN"), is_supplied("train.Saver")
    (True, False)
    """
    path = canonical(path)
    while path:
        if path in catalogue().supplied:
            return True
        if path in catalogue().packages and _behind(path) is None:
            return True
        path, _, _ = path.rpartition(".")
        module = catalogue().of_module(path)
        if module and module.source:
            return not module.source.startswith("tensorflow.")
    return False


def is_known(path: str) -> bool:
    """Whether a name is in a table, or a module above names that are.

    Args:
        path: The name without 'tf.'.

    Example:

    >>> is_known("contrib.tpu"), is_known("math")
    (True, False)
    """
    path = canonical(path)
    return path in catalogue().packages | catalogue().supplied


def _target(path: str, target: str) -> Any:
    """What a table names."""
    top, _, rest = target.partition(".")
    if top == "tf":
        return resolve(rest)
    module, _, names = target.partition(":")
    value = _imported(path, module)
    for name in filter(None, names.split(".")):
        value = _attribute(value, name, path)
    return value


def _imported(path: str, module: str) -> Any:
    top = module.partition(".")[0]
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != top or top not in _EXTRA:
            raise
        raise ImportError(
            f"`tf.{path}` is supplied by {_EXTRA[top]}, which is not "
            f"installed. {users_line()} Run `pip install "
            "'keras-tpu-estimator[tf1]'`."
        ) from error
    if top == "tf_keras":
        accept_overrides_without_mask()
    return found


def _of_parent(parent: str, name: str) -> Any:
    """The attribute of a module or class that is resolved itself."""
    if parent in catalogue().public:
        return _made_public(below(parent, name), catalogue().public[parent])
    owner = resolve(parent)
    if not isinstance(owner, LookAlike):
        return _attribute(owner, name, below(parent, name))
    if owner._kte_path != parent:
        return _made_public(below(parent, name), owner._kte_path)
    return _of_the_rest(parent, name)


def _made_public(path: str, module: str) -> Any:
    """What another module makes public under the same name."""
    public = below(module, path.rpartition(".")[2])
    try:
        return resolve(public)
    except MissingNameError as error:
        is_general = error.advice == _advice("")
        advice = _advice(path) if is_general else error.advice
        raise MissingNameError(path, advice) from None


def _of_the_rest(parent: str, name: str) -> Any:
    """What has a name that no table has, but whose module is in one."""
    path, behind = below(parent, name), _behind(parent)
    if behind is None:
        raise MissingNameError(path, _advice(path))
    if not parent and name in _folders_of_tensorflow():
        return importlib.import_module(f"tensorflow.{name}")
    return _attribute(behind, name, path)


@functools.cache
def _folders_of_tensorflow() -> frozenset[str]:
    """The packages in it that are no attributes of `tf.compat.v1`."""
    import tensorflow as tf

    folder = pathlib.Path(tf.__file__).parent
    found = {each.parent.name for each in folder.glob("*/__init__.py")}
    return frozenset(n for n in found if not hasattr(tf.compat.v1, n))


def _behind(path: str) -> Any:
    """The module that has what no table has, or `None`."""
    entry = catalogue().of_module(path)
    if entry and entry.source:
        return _target(path, entry.source)
    above, _, name = path.rpartition(".")
    owner = _behind(above) if path else None
    found = None if owner is None else _attribute_or_none(owner, name)
    # What was installed has nothing behind it.
    return None if isinstance(found, LookAlike) else found


def _advice(path: str) -> str:
    """That of the closest module that has some."""
    found = map(catalogue().of_module, reversed(ancestors(path)))
    return next((e.missing for e in found if e and e.missing), "")


def _attribute(owner: Any, name: str, path: str) -> Any:
    found = _attribute_or_none(owner, name)
    if found is None and not hasattr(owner, name):
        raise MissingNameError(path, _advice(path))
    return found


def _attribute_or_none(owner: Any, name: str) -> Any:
    """An attribute, or a module that is imported to be one."""
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
