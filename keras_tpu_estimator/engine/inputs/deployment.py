"""How often `input_fn` is called, for which cores, with which batch size."""

import dataclasses

from keras_tpu_estimator.engine.inputs.context import Deployment, TPUContext
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.topology import Topology
from keras_tpu_estimator.spec.config.tpu_config import InputPipelineConfig

_SPLIT = (InputPipelineConfig.PER_HOST_V1, InputPipelineConfig.SLICED)
PER_CORE = (InputPipelineConfig.PER_SHARD_V1, InputPipelineConfig.PER_HOST_V2)


@dataclasses.dataclass(frozen=True)
class InputPlan:
    """The calls of `input_fn` that this host makes for a mode.

    Attributes:
        batches_per_call: Batches of each call that make one step.
        way: How `input_fn` is called, or `None` for one core.
        topology: The cores, or `None` if users are not to know of them.
    """

    calls: tuple[Deployment, ...]
    batches_per_call: int = 1
    way: InputPipelineConfig | None = None
    topology: Topology | None = None

    @property
    def is_split(self) -> bool:
        """Whether cores share a batch, rather than having it whole."""
        return self.way in _SPLIT

    @property
    def is_per_core(self) -> bool:
        """Whether a step has a batch of its own for each core."""
        return self.way in PER_CORE

    @property
    def is_whole(self) -> bool:
        """Whether each host reads the batches of all."""
        return self.calls[0].total == 1

    @property
    def step_size(self) -> int | None:
        """Examples that this host reads for a step, if that is known."""
        size = self.calls[0].batch_size
        if size is None:
            return None
        return size * self.batches_per_call * len(self.calls)

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
        way: How `input_fn` is called.
        batch_size: Examples in a step, over all cores.
    """
    way = way_in(mode, way)
    replicas, hosts = topology.num_replicas, topology.num_readers
    per_host, host = topology.replicas_per_host, topology.reader_index
    calls: tuple[Deployment, ...]
    calls = (Deployment(host, hosts, per_host, batch_size // hosts),)
    batches_per_call = 1
    if way == InputPipelineConfig.PER_SHARD_V1:
        calls = tuple(
            Deployment(host * per_host + i, replicas, 1, batch_size // replicas)
            for i in range(per_host)
        )
    elif way == InputPipelineConfig.PER_HOST_V2:
        calls = (Deployment(host, hosts, per_host, batch_size // replicas),)
        batches_per_call = per_host
    elif way in (InputPipelineConfig.BROADCAST, InputPipelineConfig.SLICED):
        calls = (Deployment(0, 1, replicas, batch_size),)
    return InputPlan(calls, batches_per_call, way, topology)


def way_in(mode: str, way: InputPipelineConfig) -> InputPipelineConfig:
    """The way in a mode: cores have calls of their own in training only."""
    is_per_shard = way == InputPipelineConfig.PER_SHARD_V1
    if is_per_shard and mode != ModeKeys.TRAIN:
        return InputPipelineConfig.PER_HOST_V1
    return way
