"""Checks of a step of a TF1 graph before it is compiled."""

from collections.abc import Sequence
from typing import Any

from keras_tpu_estimator.engine.program.steps import StepInput
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.warned import warn_once
from keras_tpu_estimator.tf1.graph import ModelGraph
from keras_tpu_estimator.tf1.lifting import Pruned


def check_variables(model: ModelGraph, step: Pruned) -> None:
    """Checks that all variables of a step are global or local."""
    others = sorted({*step.body.variables} - {*model.variables, *model.local})
    if others:
        raise ValueError(
            "The variables of a model_fn must be global variables, which belong "
            "to the model, or local variables, which belong to a call. Received: "
            f"{others}. Leave `collections` out where they are made."
        )


def warn_of_writes(model: ModelGraph, step: Pruned, mode: str) -> None:
    """Warns if a step that does not train writes variables that its results read.

    For example, a condition chooses between batch normalization for training and for
    evaluation. The first writes averages that the second reads.
    """
    written = step.effects.last_writes.keys() & model.variables.keys()
    both = sorted(written & _read_by(step.fetches) - {GLOBAL_STEP})
    if not both:
        return
    line = step.line_of(step.effects.last_writes[both[0]])
    call = "evaluate" if mode == ModeKeys.EVAL else "predict"
    warn_once(
        f"In {call}, model_fn assigns variables that its results depend on: "
        f"{', '.join(both[:5])}{'' if line is None else f' (at {line})'}. "
        "Each batch changes what the next ones are computed with; in "
        "TensorFlow 1.15 it is left to chance whether a batch reads old or "
        "new values. Assign them only in mode 'train', such as by "
        "batch_norm(is_training=mode == tf.estimator.ModeKeys.TRAIN)."
    )


def _read_by(fetches: Sequence[Any]) -> set[str]:
    """Returns the names of the variables from which tensors are computed."""
    found, left = set(), [tensor.op for tensor in fetches]
    names = set()
    while left:
        op = left.pop()
        if op.name in found:
            continue
        found.add(op.name)
        left += [tensor.op for tensor in op.inputs]
        if op.type == "VarHandleOp":
            names.add(op.name)
    return names


def check_trained(model: ModelGraph, step: Pruned, example: StepInput) -> None:
    """Checks that a step trains, with the same result on all devices."""
    changes = step.effects.last_writes
    if GLOBAL_STEP not in changes:
        raise ValueError(
            "`train_op` must increment the global step. Received one that "
            f"assigns {sorted(changes)}. Use "
            "`optimizer.minimize(loss, tf.train.get_global_step())`."
        )
    varying = step.varying(example.is_split)
    if varying.sums and example.cores.axes:
        raise ValueError(_sums_that_differ(step, varying.sums))
    differing = sorted(varying.variables & model.trainable)
    if differing and example.cores.axes:
        raise ValueError(
            "On several cores gradients must be combined over them. "
            "Received a train op without CrossShardOptimizer that changes "
            f"{differing} on each device separately. Wrap the optimizer: "
            "tf.compat.v1.tpu.CrossShardOptimizer(optimizer), or sum the "
            "gradients with tf.compat.v1.tpu.cross_replica_sum, or set "
            "use_tpu=False to train on one device."
        )


def _sums_that_differ(step: Pruned, names: Sequence[str]) -> str:
    lines = [(name, step.line_of(name)) for name in names]
    made = ", ".join(
        name if line is None else f"{name}, made at {line}" for name, line in lines
    )
    return (
        "All devices must run each sum over devices, such as "
        "that of a CrossShardOptimizer. Received a sum in a branch or a loop "
        f"that depends on the batch of each device: {made}. Use the same value "
        "in the condition on all devices, such as "
        "tf.compat.v1.tpu.cross_replica_sum(loss) > 1.0, or set use_tpu=False "
        "to train on one device."
    )
