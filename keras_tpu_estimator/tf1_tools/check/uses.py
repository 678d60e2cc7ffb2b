"""The uses of TensorFlow names and of missing libraries in a script."""

import ast
import dataclasses
import os
import pathlib
from collections.abc import Container, Iterator

from keras_tpu_estimator.base.common.sources import from_module
from keras_tpu_estimator.tf1_tools.check.guards import (
    asks_version,
    guarded_in,
    is_absent,
    libraries_of,
)
from keras_tpu_estimator.tf1_tools.check.scopes import Scope, canonical

# Functions of Python that run the file or module of their argument.
_LAUNCHES = ("runpy.run_module", "runpy.run_path")


@dataclasses.dataclass(frozen=True)
class Use:
    """A use of a TensorFlow name or of a missing library.

    Attributes:
        name: A name such as "tf.layers.dense" or "gin".
        node: The expression or import.
        is_guarded: Whether the script also runs without the name.
        advice: The change that the script needs, if it does not follow from the name.
    """

    name: str
    path: pathlib.Path
    line: int
    node: ast.AST
    scope: Scope = dataclasses.field(repr=False)
    is_guarded: bool = False
    advice: str = ""


@dataclasses.dataclass(frozen=True)
class Unfollowed:
    """Code that may use TensorFlow, but cannot be followed, or a remark about it."""

    path: pathlib.Path
    line: int
    what: str


def uses_in(module: Scope, names: Container[str]) -> Iterator[Use | Unfollowed]:
    """Yields all uses of TensorFlow in a module, in the order of its lines.

    `names` are the script's own modules.
    """
    path = module.source.path
    guarded = guarded_in(module.node, names)
    parts = {
        node.value for node in ast.walk(module.node) if isinstance(node, ast.Attribute)
    }
    for scope, node in module.walk():
        if node in parts:
            continue  # This is part of a longer name, which is reported instead.
        line = getattr(node, "lineno", 1)
        for name in _names(scope, node):
            if name.endswith(".*"):
                yield Unfollowed(path, line, ast.unparse(node))
            else:
                yield Use(_cut(name), path, line, node, scope, node in guarded)
        if _is_getattr(scope, node) or _is_launch(scope, node):
            yield Unfollowed(path, line, ast.unparse(node))


def _names(scope: Scope, node: ast.AST) -> Iterator[str]:
    """Yields the TensorFlow names that a node uses, without its children."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        module = from_module(node, scope.source)
        names = [f"{module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
        meaning = scope.meaning(node)
        names = [meaning] if isinstance(meaning, str) else []
    else:
        return
    for name in map(canonical, names):
        if name.startswith("tf."):
            yield name


def _cut(name: str) -> str:
    """Returns a name without members of classes and dunder attributes."""
    parts = name.split(".")
    for number, part in enumerate(parts[1:], 1):
        if part.startswith("__"):
            return ".".join(parts[:number])
        if part[0].isupper():
            return ".".join(parts[: number + 1])
    return name


def _is_launch(scope: Scope, node: ast.AST) -> bool:
    """Returns whether a call runs another script in this process."""
    return isinstance(node, ast.Call) and scope.meaning(node.func) in _LAUNCHES


def _is_getattr(scope: Scope, node: ast.AST) -> bool:
    if not (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and node.args
    ):
        return False
    meaning = scope.meaning(node.args[0])
    return isinstance(meaning, str) and canonical(meaning).startswith("tf")


# Libraries whose distribution has another name.
_PACKAGES = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "gin": "gin-config",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "tensorflow_datasets": "tensorflow-datasets",
    "tensorflow_hub": "tensorflow-hub",
    "tensorflow_probability": "tensorflow-probability",
    "yaml": "pyyaml",
}
_OF_PYTHON_2 = {
    "ConfigParser": "configparser",
    "HTMLParser": "html.parser",
    "Queue": "queue",
    "StringIO": "io",
    "__builtin__": "builtins",
    "cPickle": "pickle",
    "cStringIO": "io",
    "httplib": "http.client",
    "urllib2": "urllib.request",
    "urlparse": "urllib.parse",
}
_NAMES_OF_PYTHON_2 = {
    "basestring": "str",
    "execfile": "exec",
    "long": "int",
    "raw_input": "input",
    "reduce": "functools.reduce",
    "unichr": "chr",
    "unicode": "str",
    "xrange": "range",
}


def absent_in(module: Scope, names: Container[str]) -> Iterator[Use]:
    """Yields imports of libraries that are neither installed nor the script's own."""
    guarded = guarded_in(module.node, names)
    for scope, node in module.walk():
        for name in libraries_of(node):
            if is_absent(name, names):
                path, line = module.source.path, getattr(node, "lineno", 1)
                yield Use(name, path, line, node, scope, node in guarded)


def of_python_2_in(module: Scope) -> Iterator[Use]:
    """Yields uses of built-in names of Python 2 that a module does not define."""
    path, guarded = module.source.path, guarded_in(module.node)
    for scope, node in module.walk():
        if (
            isinstance(node, ast.Name)
            and node.id in _NAMES_OF_PYTHON_2
            and not scope.binds(node.id)
            and not scope.binds("*")
        ):
            may_lack = node in guarded or _chooses(scope, node)
            yield Use(node.id, path, node.lineno, node, scope, may_lack)


_PROTOBUF = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
# Classes that only generated code calls, and that protobuf 4 and later refuse to call.
_DESCRIPTORS = (
    "Descriptor",
    "EnumDescriptor",
    "EnumValueDescriptor",
    "FieldDescriptor",
    "MethodDescriptor",
    "OneofDescriptor",
    "ServiceDescriptor",
)
_OF_PROTOC = (
    "An old protoc has generated this file. Set the environment variable "
    f"{_PROTOBUF}=python, or generate the file with protoc 3.19 or later."
)


def old_protocols_in(module: Scope) -> Iterator[Use]:
    """Yields the first call that protobuf refuses in a file of an old protoc."""
    if os.environ.get(_PROTOBUF) == "python":
        return
    for scope, node in module.walk():
        if not isinstance(node, ast.Call):
            continue
        called = scope.meaning(node.func)
        owner, _, name = (
            called.rpartition(".") if isinstance(called, str) else ("",) * 3
        )
        if owner == "google.protobuf.descriptor" and name in _DESCRIPTORS:
            path, line = module.source.path, node.lineno
            yield Use(f"{owner}.{name}", path, line, node, scope, advice=_OF_PROTOC)
            return


def _chooses(scope: Scope, name: ast.Name) -> bool:
    """Returns whether the function around a name may run without reaching the name.

    For example, it returns before that in Python 3, or has `a or isinstance(x, long)`.
    """
    for node in ast.walk(scope.node):
        if isinstance(node, ast.BoolOp):
            if any(name in ast.walk(value) for value in node.values[1:]):
                return True
        elif isinstance(node, ast.If) and asks_version(ast.unparse(node.test)):
            return True
    return False


def library_advice(use: Use) -> str:
    """Returns advice for a missing library or built-in name."""
    library = use.name
    now = _NAMES_OF_PYTHON_2.get(library)
    if now:
        return f"It is a name of Python 2. `2to3 -w FILE` replaces it with {now}."
    new = _OF_PYTHON_2.get(library)
    if new:
        return f"It is a Python 2 module. `2to3 -w FILE` replaces it with {new}."
    for folder in use.path.resolve().parents:
        if any(_is_below(folder, module) for module in _modules(use.node, library)):
            return f"It is in {folder}. Put this folder into PYTHONPATH."
    name = _PACKAGES.get(library, library)
    return (
        f"It is not installed. Run `pip install {name}`, or put the folder "
        "that contains it into PYTHONPATH."
    )


def _modules(node: ast.AST, library: str) -> list[str]:
    """Returns the modules of a library that an import may read."""
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        return [module, *(f"{module}.{alias.name}" for alias in node.names)]
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    return [name for name in names if name.partition(".")[0] == library]


def _is_below(folder: pathlib.Path, module: str) -> bool:
    """Returns whether a folder contains a module, or a folder of modules."""
    path = folder.joinpath(*module.split("."))
    is_package = "." in module and path.is_dir()
    files = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    return is_package or any(file.is_file() for file in files)
