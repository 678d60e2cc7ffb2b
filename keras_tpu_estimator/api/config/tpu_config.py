"""The configuration of the device loop and its input."""

import dataclasses
import enum
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from keras_tpu_estimator.base.common.field_checks import check_int, is_int, suggesting
from keras_tpu_estimator.base.common.named_tuple_like import NamedTupleLike
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PyTree

_PATTERN = re.compile(r"([1-9][0-9]*)([smh]?)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_UNITS = ("count", "seconds")


@dataclasses.dataclass(frozen=True)
class IterationsPerLoop:
    """A positive number of steps (`unit` `'count'`), or of seconds (`'seconds'`)."""

    value: int
    unit: Literal["count", "seconds"]

    def __post_init__(self) -> None:
        check_int("value", self.value, minimum=1)
        if self.unit not in _UNITS:
            raise ValueError(
                "`unit` must be 'count' or 'seconds'. Received: "
                f"{self.unit!r}. Use IterationsPerLoop.parse to read '5m'."
            )

    @classmethod
    def parse(cls, raw: object) -> "IterationsPerLoop":
        """Parses a positive number of steps, or a duration with the suffix `s`, `m` or
        `h`.

        >>> IterationsPerLoop.parse("5m")
        IterationsPerLoop(value=300, unit='seconds')
        """
        match = _PATTERN.fullmatch(str(raw))
        if match is None:
            raise ValueError(
                "`iterations_per_loop` must be positive: a number of steps, "
                "or a duration such as '30s', '5m' or '1h'. Received: "
                f"{raw!r}. Pass 1 or more, without leading zeros or fractions."
            )
        number, suffix = match.groups()
        if suffix:
            return cls(int(number) * _SECONDS[suffix], "seconds")
        return cls(int(number), "count")


_CORES_PER_REPLICA = (1, 2, 4, 8, 16, 32, 64, 128)


class InputPipelineConfig(enum.IntEnum):
    """The ways in which `input_fn` is called and its batches are distributed.

    The counterpart of `tf.compat.v1.estimator.tpu.InputPipelineConfig`, with
    the same values.

    Attributes:
        PER_SHARD_V1: One call for each device, which receives the batch.
        PER_HOST_V1: One call for each host; its batch is split over its
            devices.
        PER_HOST_V2: One call for each host; each device receives a batch in
            turn.
        BROADCAST: One call; every device receives the entire batch.
        SLICED: One call, in evaluation and prediction; the batch is split over
            all devices.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> kte.InputPipelineConfig.PER_HOST_V2 == 3
    True
    """

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4
    SLICED = 5


_EVAL_INPUTS = (InputPipelineConfig.PER_HOST_V1, InputPipelineConfig.SLICED)


@suggesting
@dataclasses.dataclass(frozen=True)
class TPUConfig(NamedTupleLike):
    """The configuration of the device loop.

    The counterpart of `tf.compat.v1.estimator.tpu.TPUConfig`.

    Args:
        iterations_per_loop: Steps of one device program, or the time that it
            should take, such as `"30s"`, `"5m"` or `"1h"`. Hooks, logs and
            checkpoints come between programs. Defaults to `None`: a program
            ends at the step of a checkpoint, a summary, a log line or a hook,
            and after about a second. A hook that names no steps is then called
            after every second step, and without `use_tpu` after each step.
        num_shards: Number of replicas, for a check. 1 uses one device, or those
            of one replica. Defaults to `None`.
        num_cores_per_replica: Number of devices that one copy of the model is
            sharded over, according to `RunConfig.layout_map`. Defaults to
            `None`, for one.
        per_host_input_for_training: A value of `InputPipelineConfig`, or
            `True` for PER_HOST_V1 (the default), or `False` for PER_SHARD_V1.
            Stored as an `InputPipelineConfig`.
        input_partition_dims: The partitioning of inputs over the devices of a
            replica: a list of one pytree for features, and optionally one for
            labels. Its leaves are lists of split counts, one for each dimension
            of a tensor, or `None` for a replicated tensor. Defaults to `None`.
        eval_training_input_configuration: PER_HOST_V1 (the default), or SLICED
            to split one batch over all devices in evaluation and prediction.
        experimental_host_call_every_n_steps: Steps of a loop for each
            `host_call`. Defaults to 1.
        tpu_job_name: Accepted; has no effect. `RunConfig` fills in that of
            TF_CONFIG.
        initial_infeed_sleep_secs: Accepted; has no effect.
        experimental_allow_per_host_v2_parallel_get_next: Accepted; has no
            effect.
        experimental_feed_hook: Accepted; has no effect.

    Raises:
        ValueError: A value is out of range, or two contradict each other.
        TypeError: A value has a wrong type.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> kte.TPUConfig(iterations_per_loop=100).iterations.value
    100
    """

    iterations_per_loop: int | str | None = None
    num_shards: int | None = None
    num_cores_per_replica: int | None = None
    per_host_input_for_training: bool | int = True
    tpu_job_name: str | None = None
    initial_infeed_sleep_secs: int | None = None
    input_partition_dims: Sequence[PyTree] | None = None
    eval_training_input_configuration: int = InputPipelineConfig.PER_HOST_V1
    experimental_host_call_every_n_steps: int = 1
    experimental_allow_per_host_v2_parallel_get_next: bool = False
    experimental_feed_hook: Callable[..., object] | None = None

    def __post_init__(self) -> None:
        if self.iterations_per_loop is not None:
            IterationsPerLoop.parse(self.iterations_per_loop)
        self._check_ints()
        self._set(
            "per_host_input_for_training",
            _training_input(self.per_host_input_for_training),
        )
        self._set(
            "eval_training_input_configuration",
            _evaluation_input(self.eval_training_input_configuration),
        )
        if self.input_partition_dims is not None:
            self._check_partitioning(self.input_partition_dims)
        _check_cores_per_replica(self.num_cores_per_replica)

    @property
    def iterations(self) -> IterationsPerLoop | None:
        """The parsed `iterations_per_loop`; `None` if loops end where hooks act.

        Example:

        >>> import keras_tpu_estimator as kte
        >>> kte.TPUConfig(iterations_per_loop="1h").iterations
        IterationsPerLoop(value=3600, unit='seconds')
        """
        if self.iterations_per_loop is None:
            return None
        return IterationsPerLoop.parse(self.iterations_per_loop)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_ints(self) -> None:
        for name, minimum in (
            ("num_shards", 1),
            ("initial_infeed_sleep_secs", 0),
        ):
            value = getattr(self, name)
            if value is not None:
                check_int(name, value, minimum)
        check_int(
            "experimental_host_call_every_n_steps",
            self.experimental_host_call_every_n_steps,
            minimum=1,
        )

    def _check_partitioning(self, dims: object) -> None:
        if not isinstance(dims, list | tuple):
            raise TypeError(
                "`input_partition_dims` must be a list. Received: "
                f"{shown(dims)}. Pass [feature_dims] or [feature_dims, "
                "label_dims]."
            )
        if len(dims) not in (1, 2):
            raise ValueError(
                "`input_partition_dims` must have one or two elements. "
                f"Received {len(dims)}: {dims!r}. Pass [feature_dims] or "
                "[feature_dims, label_dims]."
            )
        input_config = self.per_host_input_for_training
        if input_config != InputPipelineConfig.PER_HOST_V2:
            raise ValueError(
                "`input_partition_dims` needs per_host_input_for_training="
                f"InputPipelineConfig.PER_HOST_V2. Received: {input_config!r}. Set "
                "it, or leave the dims out."
            )
        if self.num_cores_per_replica is None:
            raise ValueError(
                "`input_partition_dims` needs `num_cores_per_replica`. "
                "Received: None. Set it to the number of devices that an "
                "input is split over."
            )


def _check_cores_per_replica(cores: object) -> None:
    if cores is None:
        return
    if not is_int(cores) or cores not in _CORES_PER_REPLICA:
        raise ValueError(
            "`num_cores_per_replica` must be one of "
            f"{_CORES_PER_REPLICA}. Received: {cores!r}. Pass one of these, "
            "or leave it None for one core."
        )


def _training_input(value: object) -> InputPipelineConfig:
    # Values are compared by identity, because 1 and 0 are not booleans here.
    if value is True:
        return InputPipelineConfig.PER_HOST_V1
    if value is False:
        return InputPipelineConfig.PER_SHARD_V1
    if not is_int(value) or value not in list(InputPipelineConfig):
        raise ValueError(
            "`per_host_input_for_training` must be True, False or one of "
            f"InputPipelineConfig's {_spelled(InputPipelineConfig)}. "
            f"Received: {value!r}. Leave it out for PER_HOST_V1."
        )
    return InputPipelineConfig(value)


def _evaluation_input(value: object) -> InputPipelineConfig:
    if not is_int(value) or value not in _EVAL_INPUTS:
        raise ValueError(
            "`eval_training_input_configuration` must be one of "
            f"InputPipelineConfig's {_spelled(_EVAL_INPUTS)}. Received: "
            f"{value!r}. Leave it out for PER_HOST_V1."
        )
    return InputPipelineConfig(value)


def _spelled(values: Iterable[InputPipelineConfig]) -> str:
    return ", ".join(f"{value.name}={value.value}" for value in values)
