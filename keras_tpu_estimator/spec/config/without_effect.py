"""Fields that are accepted for compatibility and that nothing reads."""

import warnings
from collections.abc import Iterable
from typing import Any

# By field, the values that ask for nothing.
_OF_RUN_CONFIG: dict[str, tuple[object, ...]] = {
    "evaluation_master": (None, ""),
    "master": (None, ""),
    "cluster": (None,),
    "session_config": (None,),
    "train_distribute": (None,),
    "device_fn": (None,),
    "protocol": (None,),
    "eval_distribute": (None,),
    "experimental_distribute": (None,),
    "experimental_max_worker_delay_secs": (None,),
    "session_creation_timeout_secs": (7200,),
    "checkpoint_save_graph_def": (True,),
}
_OF_TPU_CONFIG: dict[str, tuple[object, ...]] = {
    "tpu_job_name": (None,),
    "initial_infeed_sleep_secs": (None, 0),
    "experimental_allow_per_host_v2_parallel_get_next": (False,),
    "experimental_feed_hook": (None,),
}


def set_without_effect(
    config: Any, among: Iterable[str] | None = None
) -> list[str]:
    """Names fields that are set and have no effect.

    Args:
        config: A `RunConfig`.
        among: Names of fields to look at. Defaults to `None`, for all.

    Returns:
        Names; those of its `TPUConfig` begin with `'TPUConfig.'`.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> set_without_effect(kte.RunConfig(model_dir="/tmp/run"))
    []
    """
    wanted = {*_OF_RUN_CONFIG, "tpu_config"} if among is None else set(among)
    names = [
        name
        for name, quiet in _OF_RUN_CONFIG.items()
        if name in wanted and getattr(config, name) not in quiet
    ]
    if "tpu_config" not in wanted:
        return names
    return names + [
        f"TPUConfig.{name}"
        for name, quiet in _OF_TPU_CONFIG.items()
        if getattr(config.tpu_config, name) not in quiet
    ]


def warn_without_effect(names: list[str], stacklevel: int) -> None:
    """Warns once of all fields that have no effect.

    Args:
        stacklevel: How many calls up the line of the user is, with this one.

    Example:

    >>> warn_without_effect([], stacklevel=2)
    """
    if names:
        warnings.warn(
            "These fields of RunConfig are accepted for compatibility and "
            f"have no effect with JAX: {', '.join(names)}. Leave them out.",
            UserWarning,
            stacklevel=stacklevel,
        )
