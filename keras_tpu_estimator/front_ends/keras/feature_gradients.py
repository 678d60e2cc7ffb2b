"""Gradients of the loss of all replicas by features, such as activations."""

from collections.abc import Sequence

from keras_tpu_estimator.engine.program.steps import StepInput
from keras_tpu_estimator.front_ends.keras.traced_model_fn import TracedModelFn
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.spec.model_fn.updates import Update


def check_features(
    call: TracedModelFn, ops: Sequence[Update], requests: int
) -> None:
    """Checks that the loss of the features' gradients is unambiguous."""
    asked = call.example.differentiated
    if not asked or any(op.loss is not None for op in ops):
        return
    reductions = [op.reduction for op in ops]
    is_combined = not call.example.cores.axes or None not in reductions
    if len(ops) != 1 or requests != 1 or not is_combined:
        raise ValueError(
            "With embedding_config_spec the train op must have a loss, for "
            f"the gradients of {list(asked)}. Received one without a loss, of "
            f"{requests} calls for gradients, with reductions {reductions}. "
            "Return CrossShardOptimizer(optimizer).minimize(loss), or "
            "apply_gradients of the result of its compute_gradients."
        )


def feature_gradients(
    example: StepInput, ops: Sequence[Update], gradients: Sequence[Nest]
) -> Nest:
    """Returns the gradients of features, of the loss of all replicas.

    Args:
        example: The sharding of the batch; its data are not needed.
        ops: The updates of the train op.
        gradients: This replica's gradients of `Differentiation.differentiate`.

    Returns:
        Gradients by the keys of the features.
    """
    cores = example.cores
    minimized = [op for op in ops if op.loss is not None] or ops[:1]
    replicas = cores.topology.num_replicas
    total: Nest = {}
    for op, gradient in zip(minimized, gradients, strict=True):
        share = 1 / replicas if op.reduction == "mean" else 1.0
        scaled = {key: share * g for key, g in gradient.items()}
        total = {key: g + total.get(key, 0.0) for key, g in scaled.items()}
    if example.is_split:
        return total
    # All replicas have the same batch, so each loss is a part of the sum.
    return {key: replicas * cores.mean(g) for key, g in total.items()}
