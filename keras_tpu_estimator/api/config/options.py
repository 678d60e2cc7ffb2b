"""Checks of the fields of a `RunConfig`, and fields without effect."""

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from keras_tpu_estimator.base.common.field_checks import did_you_mean, is_int, is_number
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PathLike


def is_anything(value: object) -> bool:
    return True


def is_bool(value: object) -> bool:
    return isinstance(value, bool)


def is_one_of(*values: object) -> Callable[[object], bool]:
    return lambda value: value in values


def is_positive(value: object) -> bool:
    return is_number(value) and value > 0


def is_not_negative(value: object) -> bool:
    return is_number(value) and value >= 0


def is_count(value: object) -> bool:
    return is_int(value) and value >= 1


def is_layout_map(layout_map: object) -> bool:
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


def is_session_config(value: object) -> bool:
    # The class belongs to TensorFlow, which is not imported.
    return any(cls.__name__ == "ConfigProto" for cls in type(value).__mro__)


def takes_op(function: object) -> bool:
    return callable(function) and list(inspect.signature(function).parameters) == ["op"]


class Unset:
    """A default `value` that differs from the same value set by the caller."""

    def __init__(self, value: float | None) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


class Option:
    """A descriptor by which a property of a subclass can replace a field, and read the
    configuration's own value by `super()`.

    It is the default of the field, as `dataclasses` defines for descriptors. Without a
    property, Python reads the configuration's attribute itself.

    Attributes:
        default: The default value.
        is_valid: Whether a value other than `None` is valid.
        expected: A description of valid values, for errors.
        unread: The values of a field without effect that do not warn, or `None`
            if the field has an effect.
        is_hashable: Whether all values of the field have a hash.
    """

    def __init__(
        self,
        default: object,
        is_valid: Callable[[object], bool],
        expected: str,
        unread: tuple[object, ...] | None = None,
        is_hashable: bool = True,
    ):
        self.default = default
        self.is_valid = is_valid
        self.expected = expected
        self.unread = unread
        self.is_hashable = is_hashable

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, config: object, owner: type) -> Any:
        return self.default if config is None else vars(config)[self._name]

    def store(self, config: object, value: object) -> None:
        """Stores a value for a property of a subclass, to which `Unset` is unknown."""
        stored = value.value if isinstance(value, Unset) else value
        vars(config)[self._name] = stored


# A function, because type checkers compare the type of a default with the field's.
def option(
    default: object,
    is_valid: Callable[[object], bool] = is_anything,
    expected: str = "",
    is_hashable: bool = True,
) -> Any:
    """Returns an `Option` with an effect; `RunConfig` converts one of any value."""
    return Option(default, is_valid, expected, is_hashable=is_hashable)


def without_effect(
    default: object,
    is_valid: Callable[[object], bool] = is_anything,
    expected: str = "",
    unread: tuple[object, ...] = (),
) -> Any:
    """Returns an `Option` that is accepted and has no effect; values in `unread` do not
    warn.
    """
    return Option(default, is_valid, expected, (default, *unread))


def options_of(kind: type) -> dict[str, Option]:
    """Returns the options of a class and its bases by name, in their order."""
    return {
        name: value
        for base in kind.__mro__
        for name, value in vars(base).items()
        if isinstance(value, Option)
    }


def check_fields(config: Any) -> None:
    """Checks the fields of a `RunConfig` one by one; `None` passes."""
    for name, option in options_of(type(config)).items():
        value = getattr(config, name)
        if value is not None and not option.is_valid(value):
            raise ValueError(f"`{name}` must be {option.expected}. Received: {value!r}")
    _check_strategies(config)


def check_one_interval(steps: object, secs: object) -> None:
    """Checks that only one interval between checkpoints is set."""
    if steps is not None and secs is not None:
        raise ValueError(
            "Only one of `save_checkpoints_steps` and `save_checkpoints_secs` "
            f"can be set. Received: {steps} and {secs}. Omit one of them."
        )


def cleared_interval(kwargs: Mapping[str, object]) -> dict[str, None]:
    """Returns the name of the interval that a new one replaces."""
    by_steps, by_secs = "save_checkpoints_steps", "save_checkpoints_secs"
    for set_name, cleared in ((by_steps, by_secs), (by_secs, by_steps)):
        if kwargs.get(set_name) is not None and kwargs.get(cleared) is None:
            return {cleared: None}
    return {}


def agreed_dir(
    argument: PathLike | None, in_tf_config: PathLike | None
) -> PathLike | None:
    """Returns the directory that the constructor and TF_CONFIG agree on."""
    if argument and in_tf_config and argument != in_tf_config:
        raise ValueError(
            "`model_dir` must be the same in RunConfig and in TF_CONFIG. "
            f"Received: {argument!r} and {in_tf_config!r}. Set one of them."
        )
    return argument or in_tf_config


def check_cluster(cluster: object, master: object, session_config: object) -> None:
    """Checks that only one argument names a cluster."""
    if cluster is None:
        return
    if master is not None:
        raise ValueError(
            "Only one of `master` and `cluster` can be set. Received: "
            f"master={master!r}, cluster={cluster!r}. Omit both: they have no "
            "effect here."
        )
    # The class belongs to TensorFlow, which is not imported.
    has_field = getattr(session_config, "HasField", None)
    if has_field is not None and has_field("cluster_def"):
        raise ValueError(
            "`session_config` must not have a cluster_def with `cluster`. "
            f"Received: cluster={cluster!r} and {session_config!r}. Omit "
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
        ancestors = [cls.__name__ for cls in type(strategy).__mro__]
        if "ParameterServerStrategyV2" in ancestors:
            raise ValueError(
                f"`{name}` must not be a "
                "tf.distribute.ParameterServerStrategy. Received: "
                f"{strategy!r}. Leave it out: the batch is split over all "
                "devices without it."
            )


def set_without_effect(config: Any, among: Iterable[str] | None = None) -> list[str]:
    """Returns the names of fields that are set and have no effect: those of a
    `TPUConfig` begin with `'TPUConfig.'`, those of a `ConfigProto` with
    `'session_config.'`.
    """
    names_to_check = None if among is None else set(among)
    names = [
        name
        for field, option in options_of(type(config)).items()
        if option.unread is not None
        and (names_to_check is None or field in names_to_check)
        and getattr(config, field) not in option.unread
        for name in _set_within(field, getattr(config, field))
    ]
    if names_to_check is not None and "tpu_config" not in names_to_check:
        return names
    unread_of_tpu_config = _UNREAD_OF_TPU_CONFIG | {
        # TF_CONFIG sets this name, not the script.
        "tpu_job_name": (None, config._task.tpu_job_name)
    }
    return names + [
        f"TPUConfig.{name}"
        for name, unread in unread_of_tpu_config.items()
        if getattr(config.tpu_config, name) not in unread
    ]


def _set_within(name: str, value: object) -> list[str]:
    """Returns the set fields of a protocol buffer, or the name itself."""
    list_fields = getattr(value, "ListFields", None)
    if list_fields is None:
        return [name]
    return [
        path
        for field, inner in list_fields()
        for path in _set_within(f"{name}.{field.name}", inner)
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


_UNREAD_OF_TPU_CONFIG: dict[str, tuple[object, ...]] = {
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
    def from_setting(cls, setting: Any) -> "ChosenWriters":
        """Checks names and metric writers."""
        is_one = isinstance(setting, str) or _is_writer(setting)
        if not is_one and not isinstance(setting, Iterable):
            raise _refused(setting)
        writers = cls((setting,) if is_one else setting)
        for writer in writers:
            if isinstance(writer, str) and writer not in NAMES:
                raise ValueError(
                    f"`metric_writers` must be some of {[*NAMES]}, or "
                    f"writers. Received: {writer!r}.{did_you_mean(writer, NAMES)}"
                )
            if not isinstance(writer, str) and not _is_writer(writer):
                raise _refused(writer)
        return writers


def _is_writer(value: Any) -> bool:
    is_class = isinstance(value, type)
    return not is_class and hasattr(value, "write_scalars")


def _refused(setting: Any) -> TypeError:
    return TypeError(
        f"`metric_writers` must be some of {[*NAMES]}, or objects with a "
        f"method `write_scalars(step, scalars)`. Received: {shown(setting)}."
    )
