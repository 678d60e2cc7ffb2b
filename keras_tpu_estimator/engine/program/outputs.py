"""What leaves the devices, by mode, whoever computes it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from keras_tpu_estimator.engine.program.steps import (
    SAME_ON_ALL_CORES,
    Outputs,
    StepInput,
)
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.ground.mesh.cores import Cores
from keras_tpu_estimator.spec.model_fn.spec_checks import HostFunction

_METRICS = {ModeKeys.TRAIN: "train_metrics", ModeKeys.EVAL: "eval_metrics"}


def outputs_of(spec: Any, mode: str, fed: Callable[[HostFunction], Nest]) -> Outputs:
    """The tensors of a spec that leave the devices in a mode.

    Args:
        spec: What `model_fn` returned. Metrics that it counts by itself,
            `eval_metric_ops`, are left out.
        fed: What a function on the host is given of each step.

    Returns:
        Outputs as a `Step` has them.
    """
    if mode == ModeKeys.PREDICT:
        outputs = {"predictions": spec.predictions}
    else:
        outputs = {"loss": spec.loss}
    metrics = metrics_of(spec, mode)
    if metrics is not None:
        outputs[_METRICS[mode]] = fed(metrics)
    if spec.host_call is not None:
        outputs["host_call"] = fed(spec.host_call)
    return outputs


def metrics_of(spec: Any, mode: str) -> HostFunction | None:
    """What makes metrics of the tensors of a mode on the host, if it does."""
    metrics: HostFunction | None = getattr(spec, _METRICS.get(mode, ""), None)
    return metrics


def splits(names: Iterable[str], is_split: bool) -> dict[str, bool]:
    """Which outputs are concatenated over the cores, and not equal on all."""
    return {name: is_split and name not in SAME_ON_ALL_CORES for name in names}


def check_concatenable(
    outputs: Outputs,
    example: StepInput,
    rank_of: Callable[[Any], int | None],
    micro_batches: int = 1,
) -> None:
    """Checks that outputs can be concatenated, where they have to be.

    Args:
        outputs: By name.
        example: What the step is given. With `use_tpu` it is checked on one
            core, too, lest a program works on a single one only.
        rank_of: The rank of a tensor, `None` if it is open.
        micro_batches: Into how many parts each core cuts its batch. Defaults
            to 1.

    Raises:
        RuntimeError: One is a scalar.
    """
    is_split = example.additional["use_tpu"] and example.is_split
    if not is_split and micro_batches == 1:
        return
    for name, tensors in outputs.items():
        if name in SAME_ON_ALL_CORES:
            continue
        for path, leaf in jax.tree_util.tree_leaves_with_path(tensors):
            if rank_of(leaf) == 0:
                raise RuntimeError(
                    f"The tensors of `{name}` are concatenated over cores and "
                    "micro-batches along their first axis, so each should have "
                    "one. Received a scalar at "
                    f"{jax.tree_util.keystr(path)}: reshape it to [1]."
                )


def same_on_all(cores: Cores, value: jax.Array) -> jax.Array:
    """One value for what cores have different ones of."""
    if jnp.issubdtype(value.dtype, jnp.inexact):
        return cores.mean(value)
    return cores.of_first(value)


def of_all_cores(
    cores: Cores,
    tensors: Mapping[str, jax.Array],
    differing: Mapping[str, bool],
) -> dict[str, jax.Array]:
    """One value for each named scalar of which cores have their own.

    Args:
        cores: The cores.
        tensors: By name. Those that are no scalars are returned as they are.
        differing: Which of them may differ between cores.

    Returns:
        Means; of integers the sum; of booleans whether any is true.
    """

    def one(value: jax.Array, differs: bool) -> jax.Array:
        if jnp.issubdtype(value.dtype, jnp.inexact):
            return cores.mean(value)
        return cores.sum(value).astype(value.dtype) if differs else value

    return {
        name: value if value.ndim else one(value, differing[name])
        for name, value in tensors.items()
    }
