"""Which values the fields of a `RunConfig` may have."""

import inspect
import re
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from keras_tpu_estimator.files.checkpoints.keep_best import KeepBest
from keras_tpu_estimator.ground.base.field_checks import is_int
from keras_tpu_estimator.ground.base.field_checks import is_number


class _Check(NamedTuple):
    name: str
    is_valid: Callable[[object], bool]
    expected: str


def check_fields(config: Any) -> None:
    """Checks the fields of a `RunConfig` one by one; `None` passes.

    Args:
        config: A `RunConfig`.

    Raises:
        ValueError: A field has a value that it may not have.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> check_fields(kte.RunConfig(keep_checkpoint_max=2))
    """
    for check in _CHECKS:
        value = getattr(config, check.name)
        if value is not None and not check.is_valid(value):
            raise ValueError(
                f"`{check.name}` should be {check.expected}. Received: "
                f"{value!r}"
            )
    _check_strategies(config)


def check_one_interval(steps: object, secs: object) -> None:
    """Checks that checkpoints are due by steps or by time.

    Args:
        steps: Steps between checkpoints, or `None`.
        secs: Seconds between checkpoints, or `None`.

    Raises:
        ValueError: Both are given.

    Example:

    >>> check_one_interval(steps=100, secs=None)
    """
    if steps is not None and secs is not None:
        raise ValueError(
            "Cannot set both `save_checkpoints_steps` and "
            f"`save_checkpoints_secs`. Received: {steps} and {secs}. Set one "
            "of them."
        )


def check_cluster(
    cluster: object, master: object, session_config: object
) -> None:
    """Checks that a cluster is named only once.

    Args:
        cluster: A cluster resolver, or `None`.
        master: An address, or `None`.
        session_config: A `ConfigProto`, or `None`.

    Raises:
        ValueError: The cluster is given, and so is another one.

    Example:

    >>> check_cluster(cluster=None, master="", session_config=None)
    """
    if cluster is None:
        return
    if master is not None:
        raise ValueError(
            "Cannot set both `master` and `cluster`. Received: "
            f"master={master!r}, cluster={cluster!r}. Leave out both: they "
            "have no effect here."
        )
    # Asked for by name: the class is TensorFlow's, which is not imported.
    has_field = getattr(session_config, "HasField", None)
    if has_field is not None and has_field("cluster_def"):
        raise ValueError(
            "`session_config` should have no cluster_def with `cluster`. "
            f"Received: cluster={cluster!r} and {session_config!r}. Leave out "
            "both: they have no effect here."
        )


def _check_strategies(config: Any) -> None:
    experimental = config.experimental_distribute
    for name, strategy in (
        ("train_distribute", config.train_distribute),
        ("eval_distribute", config.eval_distribute),
        (
            "experimental_distribute.train_distribute",
            getattr(experimental, "train_distribute", None),
        ),
        (
            "experimental_distribute.eval_distribute",
            getattr(experimental, "eval_distribute", None),
        ),
    ):
        ancestors = [each.__name__ for each in type(strategy).__mro__]
        if "ParameterServerStrategyV2" in ancestors:
            raise ValueError(
                f"`{name}` should be no tf.distribute.ParameterServerStrategy."
                f" Received: {strategy!r}. Leave it out: the batch is split "
                "over all cores without it."
            )


def _is_positive(value: object) -> bool:
    return is_number(value) and value > 0


def _is_not_negative(value: object) -> bool:
    return is_number(value) and value >= 0


def _is_count(value: object) -> bool:
    return is_int(value) and value >= 1


def _is_layout_map(layout_map: object) -> bool:
    return isinstance(layout_map, Mapping) and all(
        _is_pattern(pattern)
        and isinstance(getattr(layout, "axes", layout), tuple | list)
        for pattern, layout in layout_map.items()
    )


def _is_pattern(pattern: object) -> bool:
    if not isinstance(pattern, str):
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _takes_op(function: object) -> bool:
    return callable(function) and list(
        inspect.signature(function).parameters
    ) == ["op"]


_CHECKS = (
    _Check("fast_dev_run", lambda v: isinstance(v, bool), "True or False"),
    _Check("debug_nans", lambda v: isinstance(v, bool), "True or False"),
    _Check("resume_input", lambda v: isinstance(v, bool), "True or False"),
    _Check(
        "progress",
        lambda v: isinstance(v, bool) or v == "auto",
        "True, False or 'auto'",
    ),
    _Check(
        "stall_timeout_secs", _is_positive, "> 0 seconds, or None for never"
    ),
    _Check(
        "export_backend",
        lambda value: value in ("jax", "tensorflow"),
        "'jax' or 'tensorflow'",
    ),
    _Check(
        "export_timeout_secs", _is_positive, "> 0 seconds, or None for any time"
    ),
    _Check(
        "checkpoint_format",
        lambda value: value in ("hdf5", "tensorflow", "orbax"),
        "'hdf5', 'tensorflow' or 'orbax', or None for the program's own",
    ),
    _Check("host_timeout_secs", _is_positive, "> 0 seconds"),
    _Check(
        "layout_map",
        _is_layout_map,
        "a dict or LayoutMap from regular expressions to tuples of the axis "
        "'model' and None, such as {'.*kernel': (None, 'model')}",
    ),
    _Check("shard_optimizer", lambda value: isinstance(value, bool), "a bool"),
    _Check(
        "random_bits",
        lambda value: value in ("threefry2x32", "rbg", "unsafe_rbg"),
        "'threefry2x32', 'rbg' or 'unsafe_rbg', or None for JAX's default",
    ),
    _Check("tf_random_seed", is_int, "an int, or None for no seed"),
    _Check("save_summary_steps", _is_not_negative, ">= 0; 0 or None for none"),
    _Check(
        "save_checkpoints_steps", _is_not_negative, ">= 0; 0 or None for none"
    ),
    _Check(
        "save_checkpoints_secs", _is_not_negative, ">= 0; 0 or None for none"
    ),
    _Check("keep_checkpoint_max", _is_not_negative, ">= 0; 0 or None for all"),
    _Check(
        "keep_checkpoint_every_n_hours",
        _is_positive,
        "> 0; leave it out for 10000",
    ),
    _Check("log_step_count_steps", _is_positive, "> 0, or None for no lines"),
    _Check(
        "device_fn",
        _takes_op,
        "a function of one argument named 'op', or None, as it has no effect "
        "here",
    ),
    _Check(
        "protocol",
        lambda value: value in ("grpc", "grpc+verbs"),
        "None, 'grpc' or 'grpc+verbs'",
    ),
    _Check("experimental_max_worker_delay_secs", is_int, "an int, or None"),
    _Check(
        "session_creation_timeout_secs",
        _is_positive,
        "> 0; leave it out, as it has no effect here",
    ),
    _Check("micro_batches", _is_count, "an int >= 1; 1 for the whole batch"),
    _Check(
        "dtype_policy",
        lambda value: value in ("float32", "mixed_bfloat16"),
        "None, 'float32' or 'mixed_bfloat16', which keep variables in float32",
    ),
    _Check(
        "remat",
        lambda value: value in ("activations", "full"),
        "None, 'activations' or 'full'",
    ),
    _Check(
        "keep_best",
        lambda value: isinstance(value, KeepBest),
        "None or a checkpoints.KeepBest, such as KeepBest('loss', mode='min')",
    ),
)
