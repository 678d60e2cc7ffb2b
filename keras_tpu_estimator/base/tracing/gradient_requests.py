"""The gradients that a `model_fn` requests while it is traced.

They cannot be computed before the trace is complete. A request therefore ends the
trace; the program differentiates the trace so far, and traces again with the answer.
"""

import contextvars
from collections.abc import Callable, Collection, Mapping, Sequence

import jax
import keras

from keras_tpu_estimator.base.common.types import PyTree, TensorLike
from keras_tpu_estimator.base.tracing.variables import scope_for


class GradientRequest(BaseException):  # noqa: N818 - users never see it
    """Ends a trace of `model_fn` at a gradient that is not known yet.

    It is a `BaseException`, so that `except Exception` does not catch it. The reduction
    combines the gradients of micro-batches, "mean" or "sum".
    """

    def __init__(self, loss: jax.Array, paths: tuple[str, ...], reduction: str):
        super().__init__()
        self.loss = loss
        self.paths = paths
        self.reduction = reduction


class GradientAnswers:
    """The requested gradients so far, returned in the order of requests.

    For each of them, `connected` has the paths of variables on which its loss depends.
    """

    def __init__(
        self,
        answers: Sequence[Mapping[str, jax.Array]],
        connected: Sequence[Collection[str]],
    ):
        self._answers = zip(answers, connected, strict=True)

    def __enter__(self) -> "GradientAnswers":
        self._token = _answers.set(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _answers.reset(self._token)

    def next(
        self, loss: jax.Array, paths: tuple[str, ...], reduction: str
    ) -> list[tuple[jax.Array, bool]]:
        """Returns the gradients of the next request, and whether the loss depends on
        the variables, or ends the trace without an answer.
        """
        for answer, connected in self._answers:
            return [(answer[path], path in connected) for path in paths]
        raise GradientRequest(loss, paths, reduction)


_answers: contextvars.ContextVar[GradientAnswers] = contextvars.ContextVar(
    "gradient_answers"
)


def gradients(
    loss: TensorLike,
    var_list: Sequence[keras.Variable] | keras.Variable,
    reduction: str = "mean",
    unconnected_gradients: str = "none",
) -> list[jax.Array | None]:
    """Returns the gradients of a loss by variables, as tensors, in a `model_fn`.

    The counterpart of `tf.gradients` for variables: the gradient of this core, not
    combined with those of others. It can be used like any tensor: for clipping, norms,
    or penalties that are differentiated again. For the gradient by an input, use
    `jax.grad`.

    Args:
        loss: A scalar tensor.
        var_list: A variable or a sequence of variables.
        reduction: The combination of the gradients of micro-batches with
            `RunConfig(micro_batches=...)`: "mean" (the default) for a loss that is a
            mean over examples, or "sum" for a sum.
        unconnected_gradients: The gradient by a variable on which the loss does not
            depend: "none" (the default), with which optimizers leave the variable
            as it is, or "zero", with which they apply weight decay and momentum.

    Returns:
        A list with one tensor, or `None`, for each variable.

    Raises:
        ValueError: The call is outside a `model_fn` in training, `loss` is not a
            scalar, or `reduction` or `unconnected_gradients` is invalid.
    """
    if unconnected_gradients not in ("none", "zero"):
        raise ValueError(
            "`unconnected_gradients` must be 'none' or 'zero'. Received: "
            f"{unconnected_gradients!r}. Pass one of them."
        )
    if reduction not in ("mean", "sum"):
        raise ValueError(
            f"`reduction` must be 'mean' or 'sum'. Received: reduction={reduction!r}. "
            "Pass one of them."
        )
    if isinstance(var_list, keras.Variable):
        var_list = [var_list]
    scope = scope_for("gradients")
    paths = tuple(scope.path_of(variable) for variable in var_list)
    try:
        answers = _answers.get()
    except LookupError:
        raise ValueError(
            "`gradients` and `compute_gradients` must be called only in mode "
            "'train'. Received: a call in another mode. Put it under `if mode == "
            "ModeKeys.TRAIN:`."
        ) from None
    returns_all = unconnected_gradients == "zero"
    return [
        gradient if is_connected or returns_all else None
        for gradient, is_connected in answers.next(scalar(loss), paths, reduction)
    ]


def scalar(loss: TensorLike) -> jax.Array:
    """Returns a loss of one element as a tensor of rank 0."""
    tensor = keras.ops.convert_to_tensor(loss)
    if tensor.size != 1:
        raise ValueError(
            "The loss to differentiate must be a scalar. Received: a tensor "
            f"of shape {tuple(tensor.shape)}. Compute its mean or its sum."
        )
    return keras.ops.reshape(tensor, ())


def pull_back(
    objectives: Callable[[PyTree], tuple[Sequence[jax.Array], PyTree]], values: PyTree
) -> tuple[list[PyTree], PyTree]:
    """Differentiates several scalar functions in one forward pass.

    Returns a pytree of gradients for each scalar, and the auxiliary results of
    `objectives`, which returns a sequence of scalars and an auxiliary pytree.
    """
    losses, transpose, auxiliary = jax.vjp(objectives, values, has_aux=True)
    structure = jax.tree.structure(losses)
    unit = [
        [jax.numpy.asarray(i == k, loss.dtype) for i, loss in enumerate(losses)]
        for k in range(len(losses))
    ]
    return [transpose(jax.tree.unflatten(structure, row))[0] for row in unit], auxiliary
