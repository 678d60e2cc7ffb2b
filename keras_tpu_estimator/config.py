"""How the cores are used and fed."""

import dataclasses
import enum
from typing import Any

from keras_tpu_estimator.iterations import IterationsPerLoop

_CORES_PER_REPLICA = (1, 2, 4, 8, 16, 32, 64, 128)


class InputPipelineConfig(enum.IntEnum):
    """The ways in which `input_fn` is called and its batches are shared.

    Attributes:
        PER_SHARD_V1: Once for each core, which gets the batch.
        PER_HOST_V1: Once for each host; its batch is split over its cores.
        PER_HOST_V2: Once for each host; each core gets a batch in turn.
        BROADCAST: Once; every core gets the whole batch.
        SLICED: Once, in evaluation and prediction; the batch is split over
            all cores.
    """

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4
    SLICED = 5


@dataclasses.dataclass(frozen=True)
class TPUConfig:
    """How the device loop uses the cores.

    The counterpart of `tf.compat.v1.estimator.tpu.TPUConfig`.

    Args:
        iterations_per_loop: Steps of one device program, or the time that it
            is to take, such as `"30s"`, `"5m"` or `"1h"`. Hooks, logs and
            checkpoints come between programs. Defaults to 2.
        num_shards: Number of cores; if set, there must be so many. 1 uses one
            core. Defaults to `None`.
        num_cores_per_replica: Cores that one copy of the model is spread
            over. Defaults to `None`, for one.
        per_host_input_for_training: A value of `InputPipelineConfig`, or
            `True` for PER_HOST_V1 (the default), or `False` for PER_SHARD_V1.
        tpu_job_name: Accepted; has no effect.
        initial_infeed_sleep_secs: Accepted; has no effect.
        input_partition_dims: How inputs are partitioned over the cores of a
            replica: one or two nests of split counts. Defaults to `None`.
        eval_training_input_configuration: PER_HOST_V1 (the default), or SLICED
            to split one batch over all cores in evaluation and prediction.
        experimental_host_call_every_n_steps: A `host_call` is made for every
            so many steps of a loop. Defaults to 1.
        experimental_allow_per_host_v2_parallel_get_next: Accepted; has no
            effect.
        experimental_feed_hook: Accepted; has no effect.

    Raises:
        ValueError: A value is out of range, or does not fit another one.
        TypeError: A value is of a wrong type.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> kte.TPUConfig(iterations_per_loop=100).iterations.value
    100
    """

    iterations_per_loop: int | str = 2
    num_shards: int | None = None
    num_cores_per_replica: int | None = None
    per_host_input_for_training: bool | int = True
    tpu_job_name: str | None = None
    initial_infeed_sleep_secs: int | None = None
    input_partition_dims: Any = None
    eval_training_input_configuration: int = InputPipelineConfig.PER_HOST_V1
    experimental_host_call_every_n_steps: int = 1
    experimental_allow_per_host_v2_parallel_get_next: bool = False
    experimental_feed_hook: Any = None

    def __post_init__(self) -> None:
        IterationsPerLoop.parse(self.iterations_per_loop)
        if self.num_shards is not None:
            check_positive_int("num_shards", self.num_shards)
        if self.initial_infeed_sleep_secs:
            check_positive_int(
                "initial_infeed_sleep_secs", self.initial_infeed_sleep_secs
            )
        check_positive_int(
            "experimental_host_call_every_n_steps",
            self.experimental_host_call_every_n_steps,
        )
        object.__setattr__(
            self,
            "per_host_input_for_training",
            _input_config(self.per_host_input_for_training),
        )
        if self.eval_training_input_configuration not in (
            InputPipelineConfig.PER_HOST_V1,
            InputPipelineConfig.SLICED,
        ):
            raise ValueError(
                "`eval_training_input_configuration` should be PER_HOST_V1 or "
                f"SLICED. Received: {self.eval_training_input_configuration!r}"
            )
        self._check_partitioning()
        cores = self.num_cores_per_replica
        if cores is not None and (
            isinstance(cores, bool) or cores not in _CORES_PER_REPLICA
        ):
            raise ValueError(
                "`num_cores_per_replica` should be one of "
                f"{_CORES_PER_REPLICA}. Received: {cores!r}"
            )

    @property
    def iterations(self) -> IterationsPerLoop:
        """`iterations_per_loop`, parsed."""
        return IterationsPerLoop.parse(self.iterations_per_loop)

    def without_effect(self) -> list[str]:
        """Names of fields that are set and have no effect."""
        names = (
            "tpu_job_name",
            "initial_infeed_sleep_secs",
            "experimental_allow_per_host_v2_parallel_get_next",
            "experimental_feed_hook",
        )
        return [name for name in names if getattr(self, name)]

    def _check_partitioning(self) -> None:
        dims = self.input_partition_dims
        if dims is None:
            return
        if len(dims) not in (1, 2):
            raise ValueError(
                "`input_partition_dims` should have one or two elements, for "
                f"features and for labels. Received {len(dims)}: {dims!r}"
            )
        mode = self.per_host_input_for_training
        if mode != InputPipelineConfig.PER_HOST_V2:
            raise ValueError(
                "`input_partition_dims` needs "
                "per_host_input_for_training=PER_HOST_V2. Received: "
                f"{mode!r}"
            )
        if self.num_cores_per_replica is None:
            raise ValueError(
                "`input_partition_dims` needs `num_cores_per_replica`. "
                "Received: None. Set the cores that an input is split over."
            )


def check_positive_int(name: str, value: Any) -> None:
    """Checks that a value is a positive integer.

    Raises:
        TypeError: It is no integer.
        ValueError: It is not positive.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"`{name}` must be an int. Received: {value!r} of type "
            f"{type(value).__name__}"
        )
    if value <= 0:
        raise ValueError(f"`{name}` must be positive. Received: {value}")


def _input_config(value: Any) -> InputPipelineConfig:
    if value is True:
        return InputPipelineConfig.PER_HOST_V1
    if value is False:
        return InputPipelineConfig.PER_SHARD_V1
    try:
        return InputPipelineConfig(value)
    except ValueError:
        raise ValueError(
            "`per_host_input_for_training` should be True, False or a value "
            f"of InputPipelineConfig. Received: {value!r}"
        ) from None
