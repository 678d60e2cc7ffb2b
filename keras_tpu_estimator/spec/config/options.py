"""The options of a `RunConfig`: valid values, and those without effect."""

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from keras_tpu_estimator.files.directory.keep_best import KeepBest
from keras_tpu_estimator.ground.base.field_checks import is_int, is_number
from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.suggestions import did_you_mean


class Option(NamedTuple):
    """A field of a `RunConfig`.

    Attributes:
        is_valid: Whether a value other than `None` is valid.
        expected: A description of valid values, for errors.
        unread: For a field without effect, the values that do not warn. `None`
            for a field that has an effect.
    """

    name: str
    is_valid: Callable[[object], bool]
    expected: str = ""
    unread: tuple[object, ...] | None = None


def check_fields(config: Any) -> None:
    """Checks the fields of a `RunConfig` one by one; `None` passes."""
    for option in OPTIONS:
        value = getattr(config, option.name)
        if value is not None and not option.is_valid(value):
            raise ValueError(
                f"`{option.name}` must be {option.expected}. Received: {value!r}"
            )
    _check_strategies(config)


def check_one_interval(steps: object, secs: object) -> None:
    """Checks that only one interval between checkpoints is set."""
    if steps is not None and secs is not None:
        raise ValueError(
            "Cannot set both `save_checkpoints_steps` and "
            f"`save_checkpoints_secs`. Received: {steps} and {secs}. Set one "
            "of them."
        )


def check_cluster(cluster: object, master: object, session_config: object) -> None:
    """Checks that only one argument names a cluster."""
    if cluster is None:
        return
    if master is not None:
        raise ValueError(
            "Cannot set both `master` and `cluster`. Received: "
            f"master={master!r}, cluster={cluster!r}. Leave out both: they "
            "have no effect here."
        )
    # The class belongs to TensorFlow, which is not imported.
    has_field = getattr(session_config, "HasField", None)
    if has_field is not None and has_field("cluster_def"):
        raise ValueError(
            "`session_config` must not have a cluster_def with `cluster`. "
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
                f"`{name}` must not be a "
                "tf.distribute.ParameterServerStrategy. Received: "
                f"{strategy!r}. Leave it out: the batch is split over all "
                "devices without it."
            )


def set_without_effect(config: Any, among: Iterable[str] | None = None) -> list[str]:
    """Returns the names of fields that are set and have no effect.

    Names of `TPUConfig` fields begin with `'TPUConfig.'`, those of a
    `ConfigProto` with `'session_config.'`.

    Args:
        among: Names of fields to check. Defaults to `None`, for all.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> set_without_effect(kte.RunConfig(model_dir="/tmp/run"))
    []
    """
    wanted = None if among is None else set(among)
    names = [
        name
        for option in OPTIONS
        if option.unread is not None
        and (wanted is None or option.name in wanted)
        and getattr(config, option.name) not in option.unread
        for name in _set_within(option.name, getattr(config, option.name))
    ]
    if wanted is not None and "tpu_config" not in wanted:
        return names
    return names + [
        f"TPUConfig.{name}"
        for name, unread in _UNREAD_OF_TPU_CONFIG.items()
        if getattr(config.tpu_config, name) not in unread
    ]


def _set_within(name: str, value: object) -> list[str]:
    """Returns the set fields of a protocol buffer, or the name itself."""
    list_fields = getattr(value, "ListFields", None)
    if list_fields is None:
        return [name]
    return [
        each
        for field, inner in list_fields()
        for each in _set_within(f"{name}.{field.name}", inner)
    ]


def warn_without_effect(names: list[str], stacklevel: int) -> None:
    """Logs one warning for all fields without effect."""
    if names:
        warnings.warn(
            "These fields of RunConfig are accepted for compatibility and "
            f"have no effect with JAX: {', '.join(names)}. Leave them out.",
            UserWarning,
            stacklevel=stacklevel,
        )


def _is_anything(value: object) -> bool:
    return True


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_one_of(*values: object) -> Callable[[object], bool]:
    return lambda value: value in values


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


def _is_session_config(value: object) -> bool:
    # The class belongs to TensorFlow, which is not imported.
    return any(each.__name__ == "ConfigProto" for each in type(value).__mro__)


def _takes_op(function: object) -> bool:
    return callable(function) and list(inspect.signature(function).parameters) == ["op"]


# In the order of the fields. `RunConfig` itself checks the fields that it
# converts.
OPTIONS = (
    Option("evaluation_master", _is_anything, unread=(None, "")),
    Option("master", _is_anything, unread=(None, "")),
    Option("cluster", _is_anything, unread=(None,)),
    Option("tf_random_seed", is_int, "an int, or None for no seed"),
    Option("save_summary_steps", _is_not_negative, ">= 0; 0 or None for none"),
    Option("save_checkpoints_steps", _is_not_negative, ">= 0; 0 or None for none"),
    Option("save_checkpoints_secs", _is_not_negative, ">= 0; 0 or None for none"),
    Option(
        "session_config",
        _is_session_config,
        "a ConfigProto, or None, as it has no effect here",
        unread=(None,),
    ),
    Option("keep_checkpoint_max", _is_not_negative, ">= 0; 0 or None for all"),
    Option(
        "keep_checkpoint_every_n_hours",
        _is_positive,
        "> 0; leave it out for 10000",
    ),
    Option("log_step_count_steps", _is_positive, "> 0, or None for no lines"),
    Option("train_distribute", _is_anything, unread=(None,)),
    Option(
        "device_fn",
        _takes_op,
        "a function of one argument named 'op', or None, as it has no effect here",
        unread=(None,),
    ),
    Option(
        "protocol",
        _is_one_of("grpc", "grpc+verbs"),
        "None, 'grpc' or 'grpc+verbs'",
        unread=(None,),
    ),
    Option("eval_distribute", _is_anything, unread=(None,)),
    Option("experimental_distribute", _is_anything, unread=(None,)),
    Option(
        "experimental_max_worker_delay_secs",
        is_int,
        "an int, or None",
        unread=(None,),
    ),
    Option(
        "session_creation_timeout_secs",
        _is_positive,
        "> 0; leave it out, as it has no effect here",
        unread=(7200,),
    ),
    Option("checkpoint_save_graph_def", _is_anything, unread=(True,)),
    Option("fast_dev_run", _is_bool, "True or False"),
    Option("stall_timeout_secs", _is_positive, "> 0 seconds, or None for never"),
    Option(
        "progress",
        lambda value: _is_bool(value) or value == "auto",
        "True, False or 'auto'",
    ),
    Option("debug_nans", _is_bool, "True or False"),
    Option("micro_batches", _is_count, "an int >= 1; 1 for the undivided batch"),
    Option(
        "dtype_policy",
        _is_one_of("float32", "mixed_bfloat16"),
        "None, 'float32' or 'mixed_bfloat16', which keep variables in float32",
    ),
    Option(
        "remat",
        _is_one_of("activations", "full"),
        "None, 'activations' or 'full'",
    ),
    Option(
        "keep_best",
        lambda value: isinstance(value, KeepBest),
        "None or a checkpoints.KeepBest, such as KeepBest('loss', mode='min')",
    ),
    Option("resume_input", _is_bool, "True or False"),
    Option(
        "input_state_max_bytes",
        lambda value: is_int(value) and value >= 0,
        "an int >= 0, such as 2**28 for 256 MiB",
    ),
    Option("max_input_shapes", _is_count, "an int >= 1, or None for any number"),
    Option(
        "export_backend",
        _is_one_of("jax", "tensorflow"),
        "'jax' or 'tensorflow'",
    ),
    Option("export_timeout_secs", _is_positive, "> 0 seconds, or None for no limit"),
    Option(
        "checkpoint_format",
        _is_one_of("hdf5", "tensorflow", "orbax"),
        "'hdf5', 'tensorflow' or 'orbax', or None for the format of the front end",
    ),
    Option("host_timeout_secs", _is_positive, "> 0 seconds"),
    Option(
        "layout_map",
        _is_layout_map,
        "a dict or LayoutMap from regular expressions to tuples of the axis "
        "'model' and None, such as {'.*kernel': (None, 'model')}",
    ),
    Option("shard_optimizer", _is_bool, "a bool"),
    Option("fsdp", _is_bool, "a bool"),
    Option(
        "random_bits",
        _is_one_of("threefry2x32", "rbg", "unsafe_rbg"),
        "'threefry2x32', 'rbg' or 'unsafe_rbg', or None for JAX's default",
    ),
)
_UNREAD_OF_TPU_CONFIG: dict[str, tuple[object, ...]] = {
    "tpu_job_name": (None,),
    "initial_infeed_sleep_secs": (None, 0),
    "experimental_allow_per_host_v2_parallel_get_next": (False,),
    "experimental_feed_hook": (None,),
}


NAMES = ("tensorboard", "jsonl", "wandb", "mlflow")


class ChosenWriters(tuple[Any, ...]):
    """The metric writers of a configuration; copies share them."""

    def __deepcopy__(self, memo: object) -> "ChosenWriters":
        return self

    @classmethod
    def of(cls, chosen: Any) -> "ChosenWriters":
        """Checks names and metric writers."""
        is_one = isinstance(chosen, str) or _is_writer(chosen)
        if not is_one and not isinstance(chosen, Iterable):
            raise _refused(chosen)
        writers = cls((chosen,) if is_one else chosen)
        for each in writers:
            if isinstance(each, str) and each not in NAMES:
                raise ValueError(
                    f"`metric_writers` must be some of {[*NAMES]}, or "
                    f"writers. Received: {each!r}.{did_you_mean(each, NAMES)}"
                )
            if not isinstance(each, str) and not _is_writer(each):
                raise _refused(each)
        return writers


def _is_writer(chosen: Any) -> bool:
    is_class = isinstance(chosen, type)
    return not is_class and hasattr(chosen, "write_scalars")


def _refused(chosen: Any) -> TypeError:
    return TypeError(
        f"`metric_writers` must be some of {[*NAMES]}, or objects with a "
        f"method `write_scalars(step, scalars)`. Received: {shown(chosen)}."
    )
