"""Checks of the arguments of `TPUEstimator` and its methods."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_tpu_estimator.api.config.run_config import RunConfig
from keras_tpu_estimator.api.config.tpu_config import InputPipelineConfig, TPUConfig
from keras_tpu_estimator.base.common.field_checks import directory_string, is_int
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.params import argument_names
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.topology import Topology
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.files.warm_start.settings import WarmStartSettings

RESERVED_PARAMS = ("batch_size", "context")
_MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config", "self")


def check_config(config: object) -> RunConfig:
    """Returns the configuration, if it is a `RunConfig`."""
    if not isinstance(config, RunConfig):
        raise ValueError(
            "`config` must be a keras_tpu_estimator.RunConfig. Received: "
            f"{shown(config)}. Pass "
            "config=RunConfig(model_dir=...)."
        )
    return config


def check_params(params: Any) -> None:
    """Checks that hyperparameters have names, none of which is reserved."""
    if params is not None and not (
        hasattr(params, "keys") or hasattr(params, "set_hparam")
    ):
        raise TypeError(
            "`params` must be a dict of hyperparameters. Received: "
            f"{shown(params)}. Pass something like "
            "params={'learning_rate': 0.1}."
        )
    for name in RESERVED_PARAMS:
        if params is not None and name in params:
            raise ValueError(
                f"`params` may not have the key {name!r}: TPUEstimator sets "
                "it itself. Reserved keys: "
                f"{list(RESERVED_PARAMS)}. Rename yours."
            )


def check_batch_size(name: str, size: object) -> None:
    """Checks that a batch size is a positive integer."""
    if not is_int(size):
        raise TypeError(
            f"`{name}` must be an int. Received: {shown(size)}. Pass the "
            "number of examples over all cores."
        )
    if size <= 0:
        raise ValueError(
            f"`{name}` must be positive. Received: {size}. Pass the number of "
            "examples over all cores."
        )


def check_batch_sizes(
    train: object, evaluation: object, prediction: object, tpu_config: TPUConfig
) -> None:
    """Checks the global batch sizes of a `TPUEstimator` with `use_tpu`."""
    if train is None:
        raise ValueError(
            "`train_batch_size` cannot be None with use_tpu=True. Received: "
            "None. Pass the number of examples in a step over all cores, such "
            "as `train_batch_size=64`, or `use_tpu=False`."
        )
    check_batch_size("train_batch_size", train)
    is_per_shard = (
        tpu_config.per_host_input_for_training == InputPipelineConfig.PER_SHARD_V1
    )
    if is_per_shard and tpu_config.num_cores_per_replica:
        raise ValueError(
            "Model parallelism needs input for each host. Received: "
            "per_host_input_for_training=PER_SHARD_V1 with "
            f"num_cores_per_replica={tpu_config.num_cores_per_replica}. Use "
            "PER_HOST_V1 or PER_HOST_V2."
        )
    if evaluation is not None:
        check_batch_size("eval_batch_size", evaluation)
    if prediction is not None:
        check_batch_size("predict_batch_size", prediction)


def check_batch_axis(axes: object) -> None:
    """Checks that batch axes are a list of integers, or missing."""
    if axes is None:
        return
    if not isinstance(axes, list | tuple) or not all(map(is_int, axes)):
        raise TypeError(
            "`batch_axis` must be a list with one int for each tensor of "
            f"features and labels. Received: {shown(axes)}. Pass a list such "
            "as [1, 0], or leave it out if the batch is the first dimension."
        )


def check_not_overridden(estimator: object, base: type) -> None:
    """Checks that a user's subclass only adds members."""
    allowed = {"model_fn", "latest_checkpoint"}
    package = base.__module__.partition(".")[0]
    for name in dir(base):
        is_public = not name.startswith("_") and name not in allowed
        owner = next(c for c in type(estimator).__mro__ if name in vars(c))
        if is_public and owner.__module__.partition(".")[0] != package:
            raise ValueError(
                f"Subclasses of TPUEstimator cannot override {name!r}. "
                f"Received: {type(estimator).__name__}. Rename the method, or "
                "wrap the estimator in another class."
            )


def warm_start_settings(value: object) -> WarmStartSettings | None:
    """Returns the `WarmStartSettings` of `warm_start_from`."""
    if value is None or isinstance(value, WarmStartSettings):
        return value
    if isinstance(value, str | bytes | os.PathLike | Mapping):
        return WarmStartSettings(value)
    raise ValueError(
        "`warm_start_from` must be the path of a checkpoint, a dict of "
        f"arrays, or a WarmStartSettings. Received: {shown(value)}"
    )


def check_api_version(version: object) -> int:
    """Returns the version of the export API as a number."""
    number = getattr(version, "value", version)
    if number not in (1, 2):
        raise ValueError(
            "`export_saved_model_api_version` must be 1 or 2. Received: "
            f"{version!r}. Leave it out for 1."
        )
    return number


def resolve_model_dir(model_dir: PathLike | None, config: RunConfig) -> str | None:
    """Returns the directory of the constructor or the configuration, which must not
    differ, as an absolute path, so that it stays valid when the script changes its
    working directory.
    """
    argument = None
    if model_dir is not None and model_dir != "":
        argument = directory_string("`model_dir`", model_dir)
    configured = None
    if config.model_dir is not None:
        configured = os.fsdecode(config.model_dir)
    if argument and configured and argument != configured:
        raise ValueError(
            "`model_dir` must be the same in the constructor and in "
            f"RunConfig. Received: {argument!r} and {configured!r}. Set one of "
            "them."
        )
    directory = argument or configured
    if directory is None:
        return None
    paths.check(directory)
    is_complete = paths.is_url(directory) or os.path.isabs(directory)
    return directory if is_complete else os.path.abspath(directory)


def check_role(config: RunConfig) -> None:
    """Checks that this process may train."""
    if config.task_type in ("evaluator", "ps"):
        raise ValueError(
            "`train` runs on a chief, master or worker. Received TF_CONFIG "
            f"with task type {config.task_type!r}. Call `evaluate` there, or "
            "unset TF_CONFIG."
        )


def check_listeners(listeners: Sequence[object], is_saving: bool) -> None:
    """Checks that listeners have checkpoints to listen to."""
    if listeners and not is_saving:
        raise ValueError(
            "`saving_listeners` need checkpoints, but none are saved. Set "
            "save_checkpoints_steps or save_checkpoints_secs in RunConfig."
        )


def check_system(
    mode: str, topology: Topology, tpu_config: TPUConfig, size: int | None
) -> None:
    """Checks the settings of a mode, among them its global batch size, against the
    available devices.
    """
    cores = tpu_config.num_cores_per_replica
    if cores is not None and cores != topology.cores_per_replica:
        raise ValueError(
            "TPUConfig.num_cores_per_replica must agree with the "
            "keras.distribution that is set, which has "
            f"{topology.cores_per_replica}. Received: {cores}. Leave it None, "
            "or call keras.distribution.set_distribution(None)."
        )
    replicas = topology.num_replicas
    shards = tpu_config.num_shards
    if shards is not None and shards != replicas:
        raise ValueError(
            "TPUConfig.num_shards is not set correctly. Expected the number "
            f"of replicas, {replicas}. Received: {shards}. Leave it None."
        )
    name = {
        ModeKeys.TRAIN: "train_batch_size",
        ModeKeys.EVAL: "eval_batch_size",
        ModeKeys.PREDICT: "predict_batch_size",
    }[mode]
    if size is None:
        raise ValueError(
            f"`{name}` cannot be None in mode {mode!r} with use_tpu=True. "
            "Received: None. Pass TPUEstimator the number of examples over "
            f"all cores, a multiple of {replicas}."
        )
    deployment = input_deployment(mode, tpu_config)
    if mode == ModeKeys.PREDICT:
        replicas = topology.of_lone_hosts.num_replicas
    broadcast = deployment == InputPipelineConfig.BROADCAST
    if not broadcast and size % replicas:
        raise ValueError(
            f"`{name}` must be divisible by the number of cores, {replicas}. "
            f"Received: {size}. Pass "
            f"{_nearest_multiples(size, replicas)}."
        )


def check_sliced(mode: str, tpu_config: TPUConfig, on_tpu: bool) -> None:
    """Checks that SLICED input is used only with several devices."""
    sliced = input_deployment(mode, tpu_config) == InputPipelineConfig.SLICED
    if sliced and not on_tpu:
        raise ValueError(
            "eval_training_input_configuration=SLICED only works with "
            f"use_tpu=True. Received mode {mode!r} on one core: use "
            "PER_HOST_V1."
        )


def input_deployment(mode: str, tpu_config: TPUConfig) -> InputPipelineConfig:
    """Returns the way in which a mode's `input_fn` is called."""
    sliced = InputPipelineConfig.SLICED
    if (
        mode != ModeKeys.TRAIN
        and tpu_config.eval_training_input_configuration == sliced
    ):
        return sliced
    return InputPipelineConfig(tpu_config.per_host_input_for_training)


def check_cores_per_replica(cores: int, total: int, on_host: int) -> None:
    """Checks that the devices can be divided into replicas."""
    name = "TPUConfig.num_cores_per_replica"
    if cores > total:
        raise ValueError(
            f"{name} is larger than the system, which has {total} cores. "
            f"Received: {cores}. Pass a smaller number, or leave it None."
        )
    if total % cores or (on_host % cores and cores % on_host):
        raise ValueError(
            f"{name} must divide the number of cores of a host, {on_host}, "
            f"or be that of several hosts. Received: {cores}, of {total} "
            f"cores. Pass a divisor of {on_host}."
        )


def _nearest_multiples(size: int, replicas: int) -> str:
    """Returns the nearest batch sizes that can be split over the replicas."""
    below = size - size % replicas
    above = below + replicas
    return f"{below} or {above}" if below else f"{above}"


def train_steps(
    steps: object, max_steps: object, use_tpu: bool
) -> tuple[int | None, int | None]:
    """Returns `steps` and `max_steps` as integers; at most one may be set."""
    if steps is not None and max_steps is not None:
        raise ValueError(
            "Only one of `steps` and `max_steps` can be set. Received: "
            f"steps={steps}, max_steps={max_steps}. Pass `steps` to count from "
            "the last checkpoint, or `max_steps` to count from the first step."
        )
    return (
        whole_steps("steps", steps, use_tpu),
        whole_steps("max_steps", max_steps, use_tpu),
    )


def check_validation(input_fn: object, steps: object) -> None:
    """Checks the validation arguments of `train`."""
    if input_fn is not None and not callable(input_fn):
        raise TypeError(
            "`validation` must be an input_fn. Received: "
            f"{type(input_fn).__name__}. Pass a function of `params` that "
            "returns the data to evaluate on."
        )
    if steps is None:
        return
    if input_fn is None:
        raise ValueError(
            f"`validation_steps` needs `validation`. Received: {steps} and no "
            "`validation`. Also pass an input_fn."
        )
    whole_steps("validation_steps", steps, use_tpu=True)


def check_mode(mode: object) -> None:
    """Checks the name of a mode."""
    modes = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
    if mode not in modes:
        raise ValueError(
            f"`mode` must be one of {modes}, the values of ModeKeys.TRAIN, "
            f"EVAL and PREDICT. Received: {shown(mode)}."
        )


def check_some_steps(steps: object, max_steps: object) -> None:
    """Checks that training with `use_tpu` has a number of steps."""
    if steps is None and max_steps is None:
        raise ValueError(
            "With use_tpu=True one of `steps` and `max_steps` must be set. "
            "Received None for both. Pass a number of steps."
        )


def whole_steps(name: str, value: Any, use_tpu: bool) -> int | None:
    """Returns a positive number of steps, or `None` for no number.

    As in TensorFlow, a fraction is rounded up, but not with `use_tpu`. Python 3
    divides `examples * epochs / batch_size` to a float.
    """
    if value is None:
        return None
    is_fraction = isinstance(value, float | np.floating) and math.isfinite(value)
    if not is_int(value) and (use_tpu or not is_fraction):
        raise TypeError(
            f"`{name}` must be an int. Received: {shown(value)}. Pass a number "
            "of steps, such as 100."
        )
    if value <= 0:
        raise ValueError(
            f"Must specify {name} > 0, a positive number of steps. Received: "
            f"{value}. Pass a larger number, or leave it out."
        )
    return math.ceil(value)


def check_signature(model_fn: object, has_params: bool) -> Callable[..., Any]:
    """Returns a `model_fn` that has `features`, `params` if the user passes some, and
    no unknown arguments; otherwise raises.
    """
    if not callable(model_fn):
        raise TypeError(f"`model_fn` must be callable. Received: {shown(model_fn)}")
    names = argument_names(model_fn)
    if "features" not in names:
        raise ValueError(
            "`model_fn` must take an argument `features`. Received a "
            f"function of {list(names)}."
        )
    if has_params and "params" not in names:
        raise ValueError(
            "`model_fn` must take an argument `params`, because the estimator "
            f"has `params`. Received a function of {list(names)}. Add the "
            "argument."
        )
    unexpected = sorted(set(names) - set(_MODEL_FN_ARGUMENTS))
    if unexpected:
        raise ValueError(
            "The arguments of `model_fn` must be among features, labels, mode, "
            f"params and config. Received others: {unexpected}. Pass their "
            "values in `params`, or bind them with functools.partial and keep "
            "them out of the signature."
        )
    return model_fn
