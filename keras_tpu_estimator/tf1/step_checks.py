"""What is checked of a step of a TF1 graph before it is compiled."""

from keras_tpu_estimator.engine.program.steps import StepInput
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.tf1.graph import ModelGraph
from keras_tpu_estimator.tf1.lifting import Pruned


def check_variables(model: ModelGraph, step: Pruned) -> None:
    """Checks that a step has only variables that belong to somebody."""
    others = sorted({*step.body.variables} - {*model.variables, *model.local})
    if others:
        raise ValueError(
            "The variables of a model_fn should be global ones, which belong "
            "to the model, or local ones, which belong to a call. Received: "
            f"{others}. Leave `collections` out where they are made."
        )


def check_trained(model: ModelGraph, step: Pruned, example: StepInput) -> None:
    """Checks that a step trains, and all cores the same."""
    changes = step.effects.last_writes
    if GLOBAL_STEP not in changes:
        raise ValueError(
            "`train_op` should increment the global step. Expected "
            "`optimizer.minimize(loss, tf.train.get_global_step())`. Received "
            f"one that assigns {sorted(changes)}."
        )
    differing = sorted(step.varying(example.is_split) & model.trainable)
    if differing and example.cores.axes:
        raise ValueError(
            "On several cores gradients should be combined over them. "
            "Received a train op without CrossShardOptimizer that changes "
            f"{differing}, each core by itself: wrap the optimizer, "
            "tf.compat.v1.tpu.CrossShardOptimizer(optimizer), or sum the "
            "gradients with tf.compat.v1.tpu.cross_replica_sum, or set "
            "use_tpu=False to train on one core."
        )
