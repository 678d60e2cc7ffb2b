"""What a metric is given, as arrays that belong together."""

import dataclasses

import jax
import jax.numpy as jnp
from keras import ops

from keras_tpu_estimator.ground.base.types import TensorLike


@dataclasses.dataclass(frozen=True)
class Examples:
    """Labels, predictions and weights of one shape.

    Attributes:
        weights: Float32 array; ones if the user gave none.
    """

    labels: jax.Array
    predictions: jax.Array
    weights: jax.Array

    @classmethod
    def of(
        cls,
        labels: TensorLike,
        predictions: TensorLike,
        weights: TensorLike | None,
    ) -> "Examples":
        """Brings what the user gave to one shape.

        Args:
            labels: Tensor of any shape.
            predictions: Tensor of the same shape, up to a last dimension of
                size 1 that only one of the two has.
            weights: As for `weights_like`.

        Raises:
            ValueError: The shapes do not fit.
        """
        labels, predictions = same_rank(labels, predictions)
        if labels.shape != predictions.shape:
            raise ValueError(
                "Expected labels and predictions of one shape, up to a last "
                "dimension of size 1. Received: labels of shape "
                f"{labels.shape}, predictions of shape {predictions.shape}. "
                "Pass class ids, such as ops.argmax(logits, axis=-1), with "
                "class ids, and probabilities with 0/1 labels."
            )
        return cls(labels, predictions, weights_like(weights, predictions))

    def flat(self) -> "Examples":
        """These examples as vectors."""
        return Examples(
            self.labels.ravel(), self.predictions.ravel(), self.weights.ravel()
        )


def as_array(tensor: TensorLike) -> jax.Array:
    """What the user gave, as an array."""
    return ops.convert_to_tensor(tensor)


def as_classes(tensor: TensorLike) -> jax.Array:
    """Numbers of classes, in a dtype that has one for any number of them."""
    classes = as_array(tensor)
    is_narrow = jnp.issubdtype(classes.dtype, jnp.integer) and (
        classes.dtype.itemsize < 4
    )
    return classes.astype(jnp.int32) if is_narrow else classes


def same_rank(
    first: TensorLike, second: TensorLike
) -> tuple[jax.Array, jax.Array]:
    """Drops a last dimension of size 1 that only one of two tensors has."""
    first, second = as_array(first), as_array(second)
    if first.ndim == second.ndim + 1 and first.shape[-1] == 1:
        first = first[..., 0]
    elif second.ndim == first.ndim + 1 and second.shape[-1] == 1:
        second = second[..., 0]
    return first, second


def weights_like(weights: TensorLike | None, values: jax.Array) -> jax.Array:
    """Broadcasts weights to the values that they weigh.

    Args:
        weights: `None` for ones, a scalar, or a tensor of the rank of `values`
            with dimensions equal to those of `values` or 1. It may have one
            dimension more at the end, if of size 1, or lack the last one.

    Returns:
        Float32 array of the shape of `values`.

    Raises:
        ValueError: The weights cannot be broadcast.
    """
    if weights is None:
        return jnp.ones(values.shape, jnp.float32)
    weights = as_array(weights).astype(jnp.float32)
    given = weights.shape
    if weights.ndim == values.ndim + 1 and given[-1] == 1:
        weights = weights[..., 0]
    elif 0 < weights.ndim == values.ndim - 1:
        weights = weights[..., None]
    fits = weights.ndim in (0, values.ndim) and all(
        size in (1, expected)
        for size, expected in zip(weights.shape, values.shape, strict=False)
    )
    if not fits:
        raise ValueError(
            "Expected weights that are a scalar, or of the rank of the values "
            "with each dimension equal to theirs or 1. Received: weights of "
            f"shape {given} for values of shape {values.shape}."
        )
    return jnp.broadcast_to(weights, values.shape)
