"""The gradients that a `model_fn` asks for while it is traced.

They cannot be computed before the trace has come to its end. So a request
ends the trace; the program differentiates what there is, and traces again
with the answer.
"""

import contextvars
from collections.abc import Callable, Mapping, Sequence

import jax
import keras

from keras_tpu_estimator.ground.base.types import Nest, TensorLike
from keras_tpu_estimator.ground.tracing.variables import scope_for


class GradientRequest(BaseException):  # noqa: N818 - users never see it
    """Ends a trace of `model_fn` at a gradient that is not known yet.

    The program differentiates the trace up to here and traces again with the
    answer. A `BaseException`, so that no `except Exception` keeps it.

    Args:
        loss: Scalar tensor to differentiate.
        paths: Variables to differentiate by.
        reduction: How the gradients of micro-batches are combined, "mean" or
            "sum".
    """

    def __init__(self, loss: jax.Array, paths: tuple[str, ...], reduction: str):
        super().__init__()
        self.loss = loss
        self.paths = paths
        self.reduction = reduction


class GradientAnswers:
    """The gradients asked for so far, given out in the order of requests."""

    def __init__(self, answers: Sequence[Mapping[str, jax.Array]]):
        self._answers = iter(answers)

    def __enter__(self) -> "GradientAnswers":
        self._token = _answers.set(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _answers.reset(self._token)

    def next(
        self, loss: jax.Array, paths: tuple[str, ...], reduction: str
    ) -> list[jax.Array]:
        """The answer to the next request; ends the trace if there is none."""
        for answer in self._answers:
            return [answer[path] for path in paths]
        raise GradientRequest(loss, paths, reduction)


_answers: contextvars.ContextVar[GradientAnswers] = contextvars.ContextVar(
    "gradient_answers"
)


def gradients(
    loss: TensorLike,
    var_list: Sequence[keras.Variable] | keras.Variable,
    reduction: str = "mean",
) -> list[jax.Array]:
    """The gradients of a loss by variables, as tensors, in a `model_fn`.

    The counterpart of `tf.gradients` for variables: this core's own gradient,
    not combined with the others'. It can be used for whatever a tensor can:
    clipping, norms, penalties that are differentiated again. For the gradient
    by an input use `jax.grad`.

    Args:
        loss: Scalar tensor.
        var_list: A variable or a sequence of them.
        reduction: How the gradients of micro-batches are combined, if
            `RunConfig(micro_batches=...)` asks for several: "mean" (the
            default) for a loss that is a mean over examples, or "sum" for one
            that is a sum.

    Returns:
        A list with one tensor for each variable, zeros where the loss does not
        depend on it.

    Raises:
        ValueError: It is called outside a `model_fn` in training, `loss` is
            not a scalar, or `reduction` is none of the two.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(
            f"`reduction` should be 'mean' or 'sum'. Received: reduction={reduction!r}"
        )
    if isinstance(var_list, keras.Variable):
        var_list = [var_list]
    scope = scope_for("gradients")
    paths = tuple(scope.path_of(variable) for variable in var_list)
    try:
        answers = _answers.get()
    except LookupError:
        raise ValueError(
            "Gradients are available in mode 'train' only. Expected "
            "`gradients` and `compute_gradients` under `if mode == "
            "ModeKeys.TRAIN:`."
        ) from None
    return answers.next(scalar(loss), paths, reduction)


def scalar(loss: TensorLike) -> jax.Array:
    """A loss as a tensor of rank 0.

    Raises:
        ValueError: It has more than one element.
    """
    tensor = keras.ops.convert_to_tensor(loss)
    if tensor.size != 1:
        raise ValueError(
            "The loss to differentiate should be a scalar. Received a tensor "
            f"of shape {tuple(tensor.shape)}: take its mean or its sum."
        )
    return keras.ops.reshape(tensor, ())


def pull_back(
    objectives: Callable[[Nest], tuple[Sequence[jax.Array], Nest]], values: Nest
) -> tuple[list[Nest], Nest]:
    """Differentiates several scalar functions in one forward pass.

    Args:
        objectives: Returns a sequence of scalars and a nest of other results.
        values: Nest of arrays to differentiate by.

    Returns:
        For each scalar a nest of gradients like `values`; the other results.
    """
    losses, transpose, others = jax.vjp(objectives, values, has_aux=True)
    structure = jax.tree.structure(losses)
    unit = [
        [jax.numpy.asarray(i == k, loss.dtype) for i, loss in enumerate(losses)]
        for k in range(len(losses))
    ]
    return [transpose(jax.tree.unflatten(structure, row))[0] for row in unit], others
