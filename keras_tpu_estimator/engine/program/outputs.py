"""The outputs of a step: the tensors that leave the devices in each mode.

Devices keep integers in 32 bits between steps. A step that computes with 64 bits
also outputs a flag for each result on each core, which the host checks after the
loop.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.api.model_fn.spec_checks import HostFunction
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.mesh.cores import Cores
from keras_tpu_estimator.engine.program.steps import (
    SAME_ON_ALL_CORES,
    Outputs,
    StepInput,
)

_METRICS = {ModeKeys.TRAIN: "train_metrics", ModeKeys.EVAL: "eval_metrics"}


def outputs_of(spec: Any, mode: str, fed: Callable[[HostFunction], PyTree]) -> Outputs:
    """Returns the tensors of a spec that leave the devices in a mode.

    Args:
        spec: The spec that `model_fn` returned. Its `eval_metric_ops` are not
            among the outputs.
        fed: Returns the tensors that a function on the host receives in each
            step.
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
    """Returns the function that computes metrics on the host, if there is one."""
    metrics: HostFunction | None = getattr(spec, _METRICS.get(mode, ""), None)
    return metrics


def metrics_name(mode: str) -> str:
    """Returns the name of the output that `metrics_of` a mode are fed with."""
    return _METRICS.get(mode, "")


def splits(names: Iterable[str], is_split: bool) -> dict[str, bool]:
    """Returns by name whether outputs are concatenated over the cores."""
    return {name: is_split and name not in SAME_ON_ALL_CORES for name in names}


def check_concatenable(
    outputs: Outputs,
    example: StepInput,
    rank_of: Callable[[Any], int | None],
    micro_batches: int = 1,
) -> None:
    """Checks that the outputs that are concatenated are not scalars.

    With `use_tpu` this check also runs on one core, so that a program does not
    fail only on several.

    Args:
        rank_of: Returns the rank of a tensor, or `None` if it is unknown.

    Raises:
        RuntimeError: An output is a scalar.
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
    """Returns one value for a tensor that differs between cores."""
    if jnp.issubdtype(value.dtype, jnp.inexact):
        return cores.mean(value)
    return cores.of_first(value)


def of_all_cores(
    cores: Cores,
    tensors: Mapping[str, jax.Array],
    differing: Mapping[str, bool],
) -> dict[str, jax.Array]:
    """Returns one value for each named scalar over all cores.

    Floats are averaged. Integers that differ are summed, and booleans that
    differ are true if any is true. Other tensors are returned unchanged.

    Args:
        differing: Whether each may differ between cores, by name.
    """

    def one(value: jax.Array, differs: bool) -> jax.Array:
        if jnp.issubdtype(value.dtype, jnp.inexact):
            return cores.mean(value)
        return cores.sum(value).astype(value.dtype) if differs else value

    return {
        name: value if value.ndim else one(value, differing[name])
        for name, value in tensors.items()
    }


# The flag for any tensor. No tensor has this name.
_ANY = ""


class CutIntegersError(ValueError):
    """A step computed integers that do not fit the devices' 32 bits."""


def truncation_flags(differing: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns the output `CUT` of a step: flags of shape `[1]` by name.

    The flags of all cores stay side by side, because a sum over cores would
    take time in each step.

    Args:
        differing: Booleans by name, true where a result was truncated.
    """
    found = {name: jnp.any(where)[None] for name, where in differing.items()}
    if not found:
        return {}
    return {**found, _ANY: jnp.any(jnp.stack([*found.values()]), axis=0)}


def check_not_truncated(cut: Mapping[str, jax.Array]) -> None:
    """Checks the output `CUT` of finished steps.

    Raises:
        CutIntegersError: Integers were truncated.
    """
    if not cut or not _is_set(cut[_ANY]):
        return
    names = sorted(name for name, flag in cut.items() if name and _is_set(flag))
    raise CutIntegersError(
        "Integers must fit 32 bits when they leave a step, because devices "
        "keep no 64 bits between steps. Received larger ones in "
        f"{names}, which are variables or tensors of model_fn. Count in larger "
        "units, split each into two, or compute them on the host: in input_fn, "
        "host_call, or from the predictions."
    )


def _is_set(flag: jax.Array) -> bool:
    """Returns whether a flag is set on any device of this host."""
    return any(np.any(shard.data) for shard in flag.addressable_shards)
