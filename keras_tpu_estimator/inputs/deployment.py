"""How often `input_fn` is called, for which cores, with which batch size."""

import dataclasses

from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.base.topology import Topology
from keras_tpu_estimator.config.tpu_config import InputPipelineConfig
from keras_tpu_estimator.inputs.context import Deployment
from keras_tpu_estimator.inputs.context import TPUContext


@dataclasses.dataclass(frozen=True)
class InputPlan:
    """The calls of `input_fn` that this host makes for a mode.

    Attributes:
        calls: The calls.
        batches_per_call: Batches of each call that make one step.
        is_split: Whether a step's batch is split over the cores, or given to
            each of them whole.
        per_shard: Whether every core has a call of its own.
        topology: The cores, or `None` if users are not to know of them.
    """

    calls: tuple[Deployment, ...]
    batches_per_call: int = 1
    is_split: bool = True
    per_shard: bool = False
    topology: Topology | None = None

    def context(self, call: Deployment) -> TPUContext | None:
        """The value of `params["context"]` in a call."""
        if self.topology is None:
            return None
        return TPUContext(self.topology, call)


def undivided(batch_size: int | None) -> InputPlan:
    """One call for one core, whose batch is the whole."""
    return InputPlan((Deployment(0, 1, 1, batch_size),))


def input_plan(
    mode: str, way: InputPipelineConfig, topology: Topology, batch_size: int
) -> InputPlan:
    """The calls of `input_fn` on cores.

    Args:
        mode: A value of `ModeKeys`.
        way: How `input_fn` is called.
        topology: The cores.
        batch_size: Examples in a step, over all cores.
    """
    replicas, hosts = topology.num_replicas, topology.num_hosts
    per_host, host = topology.replicas_per_host, topology.host_index
    if way == InputPipelineConfig.PER_SHARD_V1 and mode == ModeKeys.TRAIN:
        calls = tuple(
            Deployment(host * per_host + i, replicas, 1, batch_size // replicas)
            for i in range(per_host)
        )
        return InputPlan(calls, per_shard=True, topology=topology)
    if way == InputPipelineConfig.PER_HOST_V2:
        call = Deployment(host, hosts, per_host, batch_size // replicas)
        return InputPlan((call,), batches_per_call=per_host, topology=topology)
    if way in (InputPipelineConfig.BROADCAST, InputPipelineConfig.SLICED):
        return InputPlan(
            (Deployment(0, 1, replicas, batch_size),),
            is_split=way == InputPipelineConfig.SLICED,
            topology=topology,
        )
    call = Deployment(host, hosts, per_host, batch_size // hosts)
    return InputPlan((call,), topology=topology)
