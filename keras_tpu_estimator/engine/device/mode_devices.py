"""The devices of each mode, and the distribution of its input over them."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_tpu_estimator.api.config import validation
from keras_tpu_estimator.api.config.run_config import RunConfig
from keras_tpu_estimator.api.config.tpu_config import InputPipelineConfig
from keras_tpu_estimator.base.common.machine import Machine
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.params import with_additional
from keras_tpu_estimator.base.common.pickling import fields_of
from keras_tpu_estimator.base.hosts import this_process
from keras_tpu_estimator.base.mesh.all_cores import all_cores
from keras_tpu_estimator.base.mesh.cores import ONE_CORE, Cores, own_cores
from keras_tpu_estimator.base.upstream import keras_state
from keras_tpu_estimator.engine.inputs.deployment import (
    PER_CORE,
    InputPlan,
    config_in,
    input_plan,
    undivided,
)
from keras_tpu_estimator.engine.inputs.input_shapes import BatchAxes, partitioned
from keras_tpu_estimator.engine.inputs.request import InputRequest
from keras_tpu_estimator.engine.inputs.stacking import StackSize
from keras_tpu_estimator.engine.inputs.unbatched import unmarked, unmarked_of_core
from keras_tpu_estimator.engine.program.steps import Arrange, BatchLayout, Partition

# The size of stacked steps that outweighs the cost of starting a program. A few
# stacks wait for the devices at a time.
_ON_DEVICES = StackSize(2**27)
# On a CPU a stack should fit its cache. Batches of more than 2 MiB are read in place,
# because their copies take longer than the start of a program.
_ON_CPU = StackSize(2**24, most=2**24)


@dataclasses.dataclass(frozen=True)
class ModeDevices:
    """The devices of each mode.

    `eval_on_tpu` means that EVAL also uses all cores. The batch axes are those of each
    tensor. A `machine` of `None` is replaced by this process's devices when they are
    first needed.
    """

    config: RunConfig
    use_tpu: bool
    eval_on_tpu: bool
    batch_sizes: Mapping[str, int | None]
    batch_axis: Sequence[int] | None
    machine: Machine | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns the settings, without the cores."""
        return fields_of(self)

    def is_on_tpu(self, mode: str) -> bool:
        """Returns whether a mode uses all cores."""
        return self.use_tpu and (mode != ModeKeys.EVAL or self.eval_on_tpu)

    @functools.cached_property
    def cores(self) -> Cores:
        """The cores, found when they are first needed."""
        machine = self.machine or Machine.from_jax()
        tpu_config = self.config.tpu_config
        per_replica = tpu_config.num_cores_per_replica or 1
        one = (
            not self.use_tpu
            or (tpu_config.num_shards == 1 and per_replica == 1)
            or self.config.debug_nans
        )
        if one:
            return dataclasses.replace(ONE_CORE, device=machine.first)
        mesh_machine = self.machine
        is_chosen = keras.distribution.distribution() is not None
        if tpu_config.num_shards == 1 and not is_chosen:
            if machine.num_hosts == 1 and per_replica <= len(machine.devices):
                mesh_machine = machine = machine.of_first(per_replica)
        validation.check_cores_per_replica(
            per_replica, len(machine.devices), len(machine.host_devices)
        )
        layout_map = self.config.layout_map
        if layout_map is None:
            layout_map = keras_state.current_layout_map()
        config = self.config
        return all_cores(
            per_replica, layout_map, config.shard_optimizer, mesh_machine, config.fsdp
        )

    def _cores_of(self, mode: str) -> Cores:
        """Returns the cores of a mode. Each process predicts separately."""
        return own_cores(self.cores) if mode == ModeKeys.PREDICT else self.cores

    def check(self, mode: str) -> None:
        """Checks a mode's settings against the existing cores."""
        this_process.check_not_forked()
        validation.check_sliced(mode, self.config.tpu_config, self.is_on_tpu(mode))
        if self.is_on_tpu(mode) and not self.config.debug_nans:
            validation.check_system(
                mode,
                self.cores.topology,
                self.config.tpu_config,
                self.batch_sizes[mode],
            )

    def layout(self, mode: str) -> BatchLayout:
        """Returns the distribution of a mode's batches over the cores."""
        is_on_tpu = self.is_on_tpu(mode)
        cores = self._cores_of(mode)
        return BatchLayout(
            cores if is_on_tpu else cores.as_one(),
            is_split=self._pipeline_config(mode) != InputPipelineConfig.BROADCAST,
            use_tpu=is_on_tpu,
            arrange=self._arrange(mode),
            partition=self._partition(mode, cores),
        )

    def _partition(self, mode: str, cores: Cores) -> Partition | None:
        dims = self.config.tpu_config.input_partition_dims
        if dims is None or not self.is_on_tpu(mode) or not cores.model_axes:
            return None
        if mode == ModeKeys.PREDICT:
            # A prediction has the mask of padding in place of labels.
            dims = dims[:1]
        return functools.partial(partitioned, dims, cores.topology.cores_per_replica)

    def request(self, mode: str, params: Any, repeat: bool, chunk: int) -> InputRequest:
        """Returns a mode's request for input, in stacks of `chunk` steps.

        Raises `TypeError` if `batch_axis` is set for a prediction on several cores.
        """
        axes = self._axes(mode)
        if axes.axes is not None and mode == ModeKeys.PREDICT and self.is_on_tpu(mode):
            raise TypeError(
                "`batch_axis` must be None for prediction. Received: "
                f"{list(axes.axes)}. Remove the argument for prediction."
            )
        return InputRequest(
            mode=mode,
            plan=self._plan(mode),
            params_for=functools.partial(with_additional, params),
            config=self.config,
            axes=axes,
            repeat=repeat,
            chunk=chunk,
            checks_size=self.is_on_tpu(mode),
            stack_size=self._stack_size,
            state_max_bytes=self.config.input_state_max_bytes,
        )

    @property
    def _stack_size(self) -> StackSize:
        """The size of stacked steps."""
        return _ON_CPU if self.cores.platform == "cpu" else _ON_DEVICES

    def input_size(self, mode: str) -> int | None:
        """Returns the number of examples of a step on this host, if it is known."""
        return self._plan(mode).step_size

    def _plan(self, mode: str) -> InputPlan:
        size = self.batch_sizes[mode]
        if not self.is_on_tpu(mode) or size is None:
            return undivided(size)
        topology = self.cores.topology
        if mode == ModeKeys.PREDICT:
            topology = topology.of_lone_hosts
        return input_plan(mode, self._pipeline_config(mode), topology, size)

    def _pipeline_config(self, mode: str) -> InputPipelineConfig:
        return validation.input_deployment(mode, self.config.tpu_config)

    def _axes(self, mode: str) -> BatchAxes:
        per_host = self._pipeline_config(mode) == InputPipelineConfig.PER_HOST_V1
        if self.batch_axis is None or not per_host:
            return BatchAxes()
        if not self.is_on_tpu(mode):
            return BatchAxes(self.batch_axis)
        return BatchAxes(self.batch_axis, self.cores.topology.replicas_per_host)

    def _arrange(self, mode: str) -> Arrange:
        axes = self._axes(mode)
        if axes.axes is not None:
            return axes.from_front
        if (
            self.is_on_tpu(mode)
            and config_in(mode, self._pipeline_config(mode)) in PER_CORE
        ):
            return unmarked_of_core
        return unmarked
