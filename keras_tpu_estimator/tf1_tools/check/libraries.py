"""Libraries that a program imports and that are not installed."""

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping

from keras_tpu_estimator.tf1.names import aliases
from keras_tpu_estimator.tf1_tools.check.scopes import Scope
from keras_tpu_estimator.tf1_tools.check.uses import Use, guarded_in

# Libraries that are installed under another name.
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


def absent_in(module: Scope, program: Mapping[str, Scope]) -> Iterator[Use]:
    """The imports of libraries that are neither the program's nor installed.

    Args:
        module: A module of a program.
        program: All of its modules, by name.
    """
    own = {part for name in program for part in name.split(".")}
    own.add(module.source.path.parent.name)
    guarded = guarded_in(module)
    for scope, node in module.walk():
        for name in _libraries(node):
            if name in own or name in aliases.ROOTS or _is_installed(name):
                continue
            path, line = module.source.path, getattr(node, "lineno", 1)
            yield Use(name, path, line, node, scope, node in guarded)


def advice(library: str) -> str:
    """Returns advice for a missing library."""
    new = _OF_PYTHON_2.get(library)
    if new:
        return f"It is of Python 2. `2to3 -w FILE` writes {new} in its place."
    name = _PACKAGES.get(library, library)
    return (
        f"It is not installed. Run `pip install {name}`, or put the folder "
        "that contains it into PYTHONPATH."
    )


def _libraries(node: ast.AST) -> Iterator[str]:
    """The top-level names that an import needs."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = [node.module or ""]
    else:
        return
    yield from dict.fromkeys(name.partition(".")[0] for name in names)


@functools.cache
def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:
        return True  # It is being run, such as `__main__`.
