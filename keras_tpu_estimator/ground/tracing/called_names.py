"""What a line of the user's code calls, by TensorFlow's name for it."""

import ast
import inspect
import itertools
import linecache
import types
from typing import Any, NamedTuple


class Place(NamedTuple):
    """An instruction of a running function.

    Attributes:
        frame: The function's frame.
        instruction: Its offset in the function's code.
    """

    frame: types.FrameType
    instruction: int

    @property
    def line(self) -> str:
        """The file and the line."""
        number = _span(self)[0]
        return f"{self.frame.f_code.co_filename}:{number}"


def called_name(place: Place) -> str:
    """What is called or looked up at a place, such as "tf.reduce_mean".

    Returns:
        A name that begins with "tf.", if it is one of TensorFlow; the text of
        the code, if that can be read; or else "TensorFlow".
    """
    node = _node_at(place)
    if node is None:
        return "TensorFlow"
    name = _tensorflow_name(node, place.frame)
    return name or _shortened(ast.unparse(node))


def canonical(module: str) -> str | None:
    """What programs call a module of TensorFlow, such as "tf.layers".

    Args:
        module: Its `__name__`.

    Returns:
        The name, or `None` for modules of others, and private ones.

    Example:

    >>> canonical("tensorflow._api.v2.compat.v1.nn")
    'tf.nn'
    """
    top, *parts = module.split(".")
    if top != "tensorflow" or "python" in parts:
        return None
    for outer in (["_api", "v2"], ["compat", "v1"], ["compat", "v2"]):
        if parts[:2] == outer:
            parts = parts[2:]
    return ".".join(["tf", *parts])


def _span(place: Place) -> tuple[int | None, ...]:
    positions = place.frame.f_code.co_positions()
    index = place.instruction // 2
    return next(itertools.islice(positions, index, None))


def _node_at(place: Place) -> ast.expr | None:
    """The call or the whole dotted name that an instruction is part of."""
    code, names = place.frame.f_code, place.frame.f_globals
    source = "".join(linecache.getlines(code.co_filename, names))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    parents = {
        child: parent
        for parent in ast.walk(tree)
        for child in ast.iter_child_nodes(parent)
    }
    span = _span(place)
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and span == (
            node.lineno,
            node.end_lineno,
            node.col_offset,
            node.end_col_offset,
        ):
            # A lookup that fails at `tf.contrib` is one of all that follows.
            while isinstance(parent := parents.get(node), ast.Attribute):
                node = parent
            return node.func if isinstance(node, ast.Call) else node
    return None


def _tensorflow_name(node: ast.expr, frame: types.FrameType) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    root = frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    name = _name_of(root)
    return ".".join([name, *parts]) if name else None


def _name_of(value: Any) -> str | None:
    if isinstance(value, types.ModuleType):
        return canonical(value.__name__)
    value = inspect.unwrap(value) if callable(value) else value
    for attribute in ("_tf_api_names_v1", "_tf_api_names"):
        names = getattr(value, attribute, None)
        if isinstance(names, list | tuple) and names:
            return f"tf.{min(names, key=len)}"
    return None


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
