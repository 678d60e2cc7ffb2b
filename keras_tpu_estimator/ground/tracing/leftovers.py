"""TensorFlow where Keras is traced: refused, with what to write instead.

Its operations cannot take tensors of JAX, and what they make by themselves, a
variable or random numbers, would be a constant of the trace. Programs that have
not imported TensorFlow pay nothing, and none imports it for this.
"""

import contextlib
import itertools
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, ClassVar, NoReturn

import jax

from keras_tpu_estimator.ground.base.pickling import reduce_error
from keras_tpu_estimator.ground.tracing.called_names import Place, called_name
from keras_tpu_estimator.ground.tracing.tensorflow_internals import (
    telling_of_collections,
    telling_of_ops,
)

_TENSORFLOW = ("tensorflow", "tf_keras", "tf_slim")
# What users call, and what may use TensorFlow for reasons of its own.
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


class LeftoverError(TypeError):
    """A `model_fn` for Keras or JAX calls TensorFlow 1.

    The message names the call, its line, and the code to write instead.
    """

    # Returns the code to write instead of a TensorFlow 1 name, as a sentence
    # without its full stop. The package sets it when it is imported.

    advice: ClassVar[Callable[[str], str]] = staticmethod(
        lambda name: "Port it to Keras or JAX"
    )
    __reduce__ = reduce_error

    def __init__(self, place: Place, what: str):
        name = called_name(place)
        super().__init__(
            f"This code should be Keras's or JAX's. Received `{name}`, {what}, "
            f"at {place.line}. {type(self).advice(name)}. Or run a model_fn of "
            "TensorFlow 1 unported: `kte.tf1.model_fn(model_fn)`."
        )


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Refuses leftovers in code that is traced in a `with` block.

    Raises:
        LeftoverError: A variable of TensorFlow was made, random numbers were
            drawn, a collection was read, or one of its functions was given a
            tensor of JAX.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_translated(_is_about_tracers))
        tensorflow = sys.modules.get("tensorflow")
        # Another thread may be importing it.
        scope = getattr(tensorflow, "variable_creator_scope", None)
        if scope is not None:
            stack.enter_context(scope(_refuse_variable))
            stack.enter_context(telling_of_ops(_refuse_random))
            stack.enter_context(telling_of_collections(_refuse_collection))
        yield


def can_be_seen() -> bool:
    """Whether `refused`, entered now, finds variables and random numbers."""
    return "tensorflow" in sys.modules


def explained() -> contextlib.AbstractContextManager[None]:
    """Says what replaces a leftover that fails in a `with` block on the host.

    Raises:
        LeftoverError: Something of TensorFlow is gone, or needs a graph.
    """
    return _translated(_is_about_graphs)


def _refuse_variable(create: Callable[..., Any], **kwargs: Any) -> Any | NoReturn:
    place = _calling_place()
    if place is None:
        return create(**kwargs)
    raise LeftoverError(
        place,
        "a variable of TensorFlow, which would be a new constant in each "
        "trace and never be trained",
    )


def _refuse_random(op_type: str) -> None:
    place = _calling_place() if _RANDOM.fullmatch(op_type) else None
    if place is not None:
        raise LeftoverError(
            place, "whose random numbers would be the same in every step"
        )


def _refuse_collection(name: str) -> None:
    place = _calling_place()
    if place is not None:
        raise LeftoverError(
            place,
            f"which reads TensorFlow's collection {name!r}: nothing of Keras is in it",
        )


@contextlib.contextmanager
def _translated(
    is_one: Callable[[Exception, FrameType | None], bool],
) -> Iterator[None]:
    try:
        yield
    except LeftoverError:
        raise
    except Exception as error:
        place, inner = _failed_place(error.__traceback__)
        if place is not None and is_one(error, inner):
            raise LeftoverError(place, _reason(error)) from error
        raise


def _reason(error: Exception) -> str:
    if _is_missing(error):
        return "which TensorFlow no longer has"
    if _needs_graph(error):
        return "which needs a graph of TensorFlow"
    return "which cannot take a tensor of JAX"


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
    """Where the user's code failed, and what of TensorFlow it had called."""
    place: Place | None = None
    while trace is not None:
        frame = trace.tb_frame
        if place is not None and _is_of(frame, _TENSORFLOW):
            return place, frame
        if _is_of(frame, _OTHERS):
            place = None
        else:
            place = Place(frame, trace.tb_lasti)
        trace = trace.tb_next
    return place, None


def _calling_place() -> Place | None:
    """Where the running code of TensorFlow was called, if by the user."""
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
    """Whether a function is of some packages, or modules."""
    name = frame.f_globals.get("__name__", "")
    return name.split(".")[0] in packages
