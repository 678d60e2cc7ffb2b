"""Finding what is behind a name of TF1."""

import functools
import importlib
import pathlib
import types
from typing import Any

from keras_tpu_estimator.tf1.shims.callers import users_line
from keras_tpu_estimator.tf1.shims.tables import AREAS
from keras_tpu_estimator.tf1.shims.tables.area import Area

_V1 = "compat.v1."
_EXTRA = {"tf_keras": "tf-keras", "tf_slim": "tf_slim"}
# Of the names that Python asks modules for, those that programs ask for, too.
_VERSIONS = ("__compiler_version__", "__git_version__", "__version__")
_ELSEWHERE = "docs/migrating.md lists what to write instead of many names."


class MissingNameError(AttributeError):
    """A name of TF1 that neither TensorFlow has nor is supplied.

    Attributes:
        advice: What to do without it.
    """

    def __init__(self, path: str, advice: str):
        self.advice = advice or _ELSEWHERE
        parts = (
            f"TensorFlow has no `tf.{path}`, and it is not supplied here.",
            users_line(),
            self.advice,
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
        if name.startswith("__") and name not in _VERSIONS:
            raise AttributeError(name)
        value = resolve(_below(self._kte_path, name))
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        """Keeps a function from a module of its name, which `import` sets."""
        if _below(self._kte_path, name) not in _tree().modules:
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """All names, supplied ones and TensorFlow's."""
        known = _tree().packages | {*_tree().supplied}
        prefix = _below(self._kte_path, "")
        below = {n.removeprefix(prefix) for n in known if n.startswith(prefix)}
        others = {*dir(_behind(self._kte_path))}
        names = {n for n in below if "." not in n} | others
        return sorted(n for n in names if n and not n.startswith("_"))

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
    keras_tpu_estimator.tf1.shims.resolving.MissingNameError: ...
    """
    tree = _tree()
    if path.startswith(_V1):
        return resolve(path.removeprefix(_V1))
    if path in tree.missing:
        raise MissingNameError(path, tree.missing[path])
    if path in tree.supplied:
        return _target(path, tree.supplied[path])
    if path in tree.packages:
        return LookAlike(path)
    parent, _, name = path.rpartition(".")
    if parent in tree.packages:
        return _of_the_rest(parent, name)
    return _attribute(resolve(parent), name, path)


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
    path = path.removeprefix(_V1)
    target = _tree().modules.get(path)
    return resolve(path) if target is None else _target(path, target)


def is_supplied(path: str) -> bool:
    """Whether TensorFlow's own has no part in a name.

    Args:
        path: The name without 'tf.'.

    Example:

    >>> is_supplied("estimator.ModeKeys.TRAIN"), is_supplied("train.Saver")
    (True, False)
    """
    tree = _tree()
    path = path.removeprefix(_V1)
    while path:
        if path in tree.supplied:
            return True
        if path in tree.packages and _behind(path) is None:
            return True
        path, _, _ = path.rpartition(".")
        rest = tree.areas[path].rest if path in tree.areas else None
        if rest is not None:
            return not rest.startswith("tensorflow.")
    return False


def is_known(path: str) -> bool:
    """Whether a name is in a table, or a module above names that are.

    Args:
        path: The name without 'tf.'.

    Example:

    >>> is_known("contrib.tpu"), is_known("math")
    (True, False)
    """
    path = path.removeprefix(_V1)
    return path in _tree().packages or path in _tree().supplied


@functools.cache
def _tree() -> "_Tree":
    return _Tree()


class _Tree:
    """All areas in one."""

    def __init__(self) -> None:
        self.areas: dict[str, Area] = {area.path: area for area in AREAS}
        self.supplied = {
            area.full(name): target
            for area in AREAS
            for name, target in area.supplied.items()
        }
        self.missing = {
            area.full(name): advice
            for area in AREAS
            for name, advice in area.missing.items()
        }
        self.modules = {
            area.full(name): target
            for area in AREAS
            for name, target in area.modules.items()
        }
        names = (*self.supplied, *self.missing)
        above = {a for n in (*names, *self.areas) for a in _ancestors(n)}
        self.packages = ({*self.areas} | above) - {*self.supplied}


def _ancestors(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts))]


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _target(path: str, target: str) -> Any:
    """What a table names."""
    if target.startswith("tf."):
        return resolve(target.removeprefix("tf."))
    module, _, names = target.partition(":")
    value = _imported(path, module)
    for name in filter(None, names.split(".")):
        value = _attribute(value, name, path)
    return value


def _imported(path: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = module.partition(".")[0]
        if error.name != top or top not in _EXTRA:
            raise
        raise ImportError(
            f"`tf.{path}` is supplied by {_EXTRA[top]}, which is not "
            f"installed. {users_line()} Run `pip install "
            "'keras-tpu-estimator[tf1]'`."
        ) from error


def _of_the_rest(parent: str, name: str) -> Any:
    """What has a name that no table has, but whose module is in one."""
    path, behind = _below(parent, name), _behind(parent)
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
    area = _tree().areas.get(path)
    if area is not None and area.rest is not None:
        return _target(path, area.rest)
    above, _, name = path.rpartition(".")
    owner = _behind(above) if path else None
    found = None if owner is None else _attribute_or_none(owner, name)
    # What was installed has nothing behind it.
    return None if isinstance(found, LookAlike) else found


def _advice(path: str) -> str:
    """That of the closest module that has some."""
    areas = _tree().areas
    for above in reversed(_ancestors(path)):
        if above in areas and areas[above].advice:
            return areas[above].advice
    return ""


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
    below = f"{owner.__name__}.{name}"
    try:
        return importlib.import_module(below)
    except ModuleNotFoundError as error:
        if error.name != below:
            raise
    return None
