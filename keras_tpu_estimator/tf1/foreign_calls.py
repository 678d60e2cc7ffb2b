"""TensorFlow calls in traced Keras code, rejected with the code to write instead.

TensorFlow operations do not accept JAX tensors, and their variables or random numbers
would be constants in the trace. Nothing here imports TensorFlow, so scripts that do not
use it do no additional work.
"""

import ast
import contextlib
import inspect
import itertools
import linecache
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, NamedTuple, NoReturn

import jax

from keras_tpu_estimator.base.common.pickling import reduce_error
from keras_tpu_estimator.base.upstream.tensorflow_names import (
    collections_reported,
    ops_reported,
)
from keras_tpu_estimator.tf1.names import porting

_TENSORFLOW = ("tensorflow", "tf_keras", "tf_slim")
# Libraries that users call, and that may use TensorFlow internally.
_OTHERS = ("jax", "jaxlib", "keras", "keras_tpu_estimator", "numpy")
_RANDOM = re.compile(
    "RandomStandardNormal|RandomUniform(Int)?|(Parameterized)?TruncatedNormal"
    "|RandomGamma|RandomPoisson(V2)?|RandomShuffle|Multinomial"
    "|Stateful(Uniform|UniformInt|StandardNormalV2|TruncatedNormal)"
)
_MISSING = re.compile(
    r"module '(tensorflow|keras\._tf_keras)[\w.]*' has no attribute"
    r"|is not available with Keras"
)


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


def called_name(call: Place) -> str:
    """Returns TensorFlow's name at a place, or else the source text or "TensorFlow"."""
    node = _node_at(call)
    if node is None:
        return "TensorFlow"
    name = _tensorflow_name(node, call.frame)
    return name or _shortened(ast.unparse(node))


def canonical_module(module: str) -> str | None:
    """Returns the public name of a TensorFlow module; `None` for any other.

    >>> canonical_module("tensorflow._api.v2.compat.v1.nn")
    'tf.nn'
    """
    top, *parts = module.split(".")
    if top != "tensorflow" or "python" in parts:
        return None
    for outer in (["_api", "v2"], ["compat", "v1"], ["compat", "v2"]):
        if parts[:2] == outer:
            parts = parts[2:]
    return ".".join(["tf", *parts])


def _span(call: Place) -> tuple[int | None, ...]:
    positions = call.frame.f_code.co_positions()
    index = call.instruction // 2
    return next(itertools.islice(positions, index, None))


def _node_at(call: Place) -> ast.expr | None:
    """Returns the call or the complete dotted name that contains an instruction."""
    code, names = call.frame.f_code, call.frame.f_globals
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
    span = _span(call)
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and span == (
            node.lineno,
            node.end_lineno,
            node.col_offset,
            node.end_col_offset,
        ):
            # A failed lookup of `tf.contrib` includes all following names.
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
        return canonical_module(value.__name__)
    value = inspect.unwrap(value) if callable(value) else value
    for attribute in ("_tf_api_names_v1", "_tf_api_names"):
        names = getattr(value, attribute, None)
        if isinstance(names, list | tuple) and names:
            return f"tf.{min(names, key=len)}"
    return None


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


class TF1CallError(TypeError):
    """A `model_fn` for Keras or JAX calls TensorFlow 1.

    The message names the call, its line, and the code to write instead.
    """

    __reduce__ = reduce_error

    def __init__(self, call: Place, what: str):
        name = called_name(call)
        super().__init__(
            f"This code must use Keras or JAX. Received `{name}`, {what}, "
            f"at {call.line}. {porting.advice(name)}. Or run a TensorFlow 1 "
            "model_fn unchanged: `kte.tf1.model_fn(model_fn)`."
        )


@contextlib.contextmanager
def rejected() -> Iterator[None]:
    """Rejects TensorFlow calls in code that is traced in a `with` block.

    Raises a `TF1CallError` if the code makes a TensorFlow variable, draws random
    numbers, reads a collection, or passes a JAX tensor to TensorFlow.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_translated(_is_about_tracers))
        tensorflow = sys.modules.get("tensorflow")
        # Another thread may be importing TensorFlow.
        scope = getattr(tensorflow, "variable_creator_scope", None)
        if scope is not None:
            stack.enter_context(scope(_refuse_variable))
            stack.enter_context(ops_reported(_refuse_random))
            stack.enter_context(collections_reported(_refuse_collection))
        yield


def are_detectable() -> bool:
    """Returns whether `rejected` would now detect variables and random numbers."""
    return "tensorflow" in sys.modules


def with_advice() -> contextlib.AbstractContextManager[None]:
    """Translates errors about missing and graph-only names into `TF1CallError`s."""
    return _translated(_is_about_graphs)


def _refuse_variable(create: Callable[..., Any], **kwargs: Any) -> Any | NoReturn:
    call = _calling_place()
    if call is None:
        return create(**kwargs)
    raise TF1CallError(
        call,
        "a TensorFlow variable, which would be a new constant in each "
        "trace and never be trained",
    )


def _refuse_random(op_type: str) -> None:
    call = _calling_place() if _RANDOM.fullmatch(op_type) else None
    if call is not None:
        raise TF1CallError(call, "whose random numbers would be the same in every step")


def _refuse_collection(name: str) -> None:
    call = _calling_place()
    if call is not None:
        raise TF1CallError(
            call,
            f"which reads TensorFlow's collection {name!r}, where Keras adds nothing",
        )


@contextlib.contextmanager
def _translated(
    is_one: Callable[[Exception, FrameType | None], bool],
) -> Iterator[None]:
    try:
        yield
    except TF1CallError:
        raise
    except Exception as error:
        call, inner = _failed_place(error.__traceback__)
        if call is not None and is_one(error, inner):
            raise TF1CallError(call, _reason(error)) from error
        raise


def _reason(error: Exception) -> str:
    if _is_missing(error):
        return "which TensorFlow no longer has"
    if _needs_graph(error):
        return "which needs a TensorFlow graph"
    return "which does not accept a JAX tensor"


def _is_about_graphs(error: Exception, inner: FrameType | None) -> bool:
    del inner
    return _is_missing(error) or _needs_graph(error)


def _is_about_tracers(error: Exception, inner: FrameType | None) -> bool:
    if _is_about_graphs(error, inner):
        return True
    if inner is None:
        return False
    return any(
        isinstance(leaf, jax.core.Tracer)
        for leaf in jax.tree.leaves(list(inner.f_locals.values()))
    )


def _is_missing(error: Exception) -> bool:
    return isinstance(error, AttributeError) and bool(_MISSING.search(str(error)))


def _needs_graph(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, RuntimeError | ValueError) and (
        "eager execution" in text or "eager mode" in text
    )


def _failed_place(
    trace: TracebackType | None,
) -> tuple[Place | None, FrameType | None]:
    """Returns the user's failed place, and TensorFlow's frame below it, if any."""
    call: Place | None = None
    while trace is not None:
        frame = trace.tb_frame
        if call is not None and _is_of(frame, _TENSORFLOW):
            return call, frame
        if _is_of(frame, _OTHERS):
            call = None
        else:
            call = Place(frame, trace.tb_lasti)
        trace = trace.tb_next
    return call, None


def _calling_place() -> Place | None:
    """Returns the place in the user's code that called TensorFlow, or `None`."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    below = itertools.dropwhile(lambda f: not _is_of(f, _TENSORFLOW), frames)
    callers = itertools.dropwhile(
        lambda f: _is_of(f, (*_TENSORFLOW, "contextlib")), below
    )
    caller = next(callers, None)
    if caller is None or _is_of(caller, _OTHERS):
        return None
    return Place(caller, caller.f_lasti)


def _is_of(frame: FrameType, packages: tuple[str, ...]) -> bool:
    """Returns whether a function belongs to one of some packages or modules."""
    name = frame.f_globals.get("__name__", "")
    return name.split(".")[0] in packages
