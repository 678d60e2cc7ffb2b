"""Sets of classes: the right ones of each example, and those retrieved."""

import dataclasses

import jax
import jax.numpy as jnp

from keras_tpu_estimator.ground.base.types import TensorLike
from keras_tpu_estimator.spec.metrics.examples import as_classes
from keras_tpu_estimator.spec.metrics.examples import weights_like


@dataclasses.dataclass(frozen=True)
class Retrieved:
    """Sums over examples of right, wrong and missing classes, float32."""

    true_positives: jax.Array
    false_positives: jax.Array
    false_negatives: jax.Array

    @classmethod
    def of(
        cls,
        labels: TensorLike,
        predictions_idx: TensorLike,
        class_id: int | None,
        weights: TensorLike | None,
    ) -> "Retrieved":
        """Counts one batch; of one class only, unless `class_id` is `None`."""
        labels, ids = same_examples(labels, predictions_idx)
        if class_id is None:
            is_wanted = is_in(ids, labels)
            right = _count(is_wanted & _is_first(ids))
            wrong = _count(~is_wanted & _is_first(ids))
            missing = _count(~is_in(labels, ids) & _is_first(labels))
        else:
            is_wanted = jnp.any(labels == class_id, axis=-1)
            is_retrieved = jnp.any(ids == class_id, axis=-1)
            right = is_wanted & is_retrieved
            wrong = ~is_wanted & is_retrieved
            missing = is_wanted & ~is_retrieved
        weights = weights_like(weights, right)
        return cls(
            true_positives=jnp.sum(right * weights),
            false_positives=jnp.sum(wrong * weights),
            false_negatives=jnp.sum(missing * weights),
        )


def same_examples(
    labels: TensorLike, predictions_idx: TensorLike
) -> tuple[jax.Array, jax.Array]:
    """Both as arrays of classes, `[..., num_labels]` and `[..., k]`."""
    labels = as_classes(labels)
    ids = as_classes(predictions_idx)
    given = labels.shape
    if labels.ndim == ids.ndim - 1:
        labels = labels[..., None]
    if ids.ndim == 0 or labels.shape[:-1] != ids.shape[:-1]:
        raise ValueError(
            "Expected labels of shape [...] or [..., num_labels] for "
            "predictions of shape [..., k] or [..., num_classes]. Received: "
            f"labels of shape {given}, predictions whose examples have shape "
            f"{ids.shape[:-1]}."
        )
    return labels, ids


def is_in(ids: jax.Array, others: jax.Array) -> jax.Array:
    """Whether each element of the last dimension is among the others."""
    return jnp.any(ids[..., :, None] == others[..., None, :], axis=-1)


def _is_first(ids: jax.Array) -> jax.Array:
    """Whether each element of the last dimension has no equal before it."""
    is_equal = ids[..., :, None] == ids[..., None, :]
    return ~jnp.any(jnp.tril(is_equal, k=-1), axis=-1)


def _count(condition: jax.Array) -> jax.Array:
    return jnp.sum(condition, axis=-1)
