"""The configuration of an estimator's runs."""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from keras_tpu_estimator.api.config.options import (
    ChosenWriters,
    Unset,
    agreed_dir,
    check_cluster,
    check_fields,
    check_one_interval,
    cleared_interval,
    is_bool,
    is_count,
    is_layout_map,
    is_not_negative,
    is_one_of,
    is_positive,
    is_session_config,
    option,
    options_of,
    set_without_effect,
    takes_op,
    warn_without_effect,
    without_effect,
)
from keras_tpu_estimator.api.config.task_properties import TaskProperties
from keras_tpu_estimator.api.config.tpu_config import TPUConfig
from keras_tpu_estimator.base.common.field_checks import (
    did_you_mean,
    directory_string,
    is_int,
    suggesting,
)
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.hosts import starting
from keras_tpu_estimator.base.hosts.cluster import Cluster
from keras_tpu_estimator.base.hosts.task import Task
from keras_tpu_estimator.base.storage import trusted
from keras_tpu_estimator.files.directory.retention import KeepBest
from keras_tpu_estimator.files.formats import registry as formats

_DEFAULT_SAVE_SECS = 600
_NOT_REPLACEABLE = ("master", "evaluation_master", "cluster")


_UNSET_STEPS: Any = Unset(None)
_UNSET_SECS: Any = Unset(_DEFAULT_SAVE_SECS)


@suggesting
@dataclasses.dataclass(frozen=True)
class RunConfig(TaskProperties):
    """The configuration of an estimator: its files, intervals and devices.

    The counterpart of `tf.compat.v1.estimator.tpu.RunConfig`. Fields that have
    no meaning on JAX are accepted; one warning names those that are set. The
    constructor reads TF_CONFIG and other environment variables of the job.
    Other processes are joined only when a `TPUEstimator` is made, or
    `initialize` is called.

    Args:
        tpu_config: A `TPUConfig`. Defaults to `TPUConfig()`.
        model_dir: Directory of checkpoints and event files, or its URL, stored
            as a string. Defaults to that of TF_CONFIG, if it has one.
        tf_random_seed: The seed of initial values and random layers. Defaults
            to `None`.
        save_summary_steps: Steps between summaries; 0 or `None` for none.
            Defaults to 100.
        save_checkpoints_steps: Steps between checkpoints; 0 or `None` for
            none. Set only one of this and `save_checkpoints_secs`. Defaults
            to `None`.
        save_checkpoints_secs: Seconds between checkpoints; 0 or `None` for
            none. Defaults to 600, or to `None` if `save_checkpoints_steps` is
            set.
        keep_checkpoint_max: Number of checkpoints to keep; 0 or `None` for all.
            Defaults to 5.
        keep_checkpoint_every_n_hours: Hours after which one more checkpoint is
            kept forever. Defaults to 10000.
        log_step_count_steps: Steps between log lines; `None` for none.
            Defaults to 100.
        fast_dev_run: Whether to only try the script: one step of `train`, one
            step of `evaluate` and one batch of `predict`, with all files in a
            temporary directory. Defaults to `False`.
        stall_timeout_secs: Seconds without a finished loop after which the
            stacks of all threads are printed to standard error, repeatedly.
            Time counts from the call of `input_fn`. Defaults to `None`, for
            never.
        progress: Whether a bar shows the steps of `train`, `evaluate` and
            `predict`, their rate and the time left, and a line shows that steps
            are being traced and compiled. Defaults to "auto": in notebooks, and
            if standard output is a terminal.
        debug_nans: Whether training finds the operation that produces the first
            NaN, with its line in `model_fn`. Training is then slower and uses
            one device. Defaults to `False`.
        micro_batches: Number of micro-batches into which each device splits its
            batch in training. A step accumulates their gradients, so that it
            needs the memory of one micro-batch. Defaults to 1.
        dtype_policy: The Keras dtype policy of the layers that `model_fn`
            makes: "mixed_bfloat16" or "float32". Defaults to `None`, for that
            of `keras.config.set_dtype_policy`.
        remat: Rematerialization, which saves memory: the backward pass
            recomputes "activations", which are all values except the results of
            matrix products and convolutions, or "full", nearly all values.
            Defaults to `None`, for none.
        keep_best: A `checkpoints.KeepBest`, which names the metric of
            `evaluate` that selects the best checkpoint. That checkpoint is kept
            in addition to the last `keep_checkpoint_max`. Defaults to `None`.
        resume_input: Whether `train`, after an interrupted call, continues to
            read its input where that call stopped. With `False`, each call
            reads it from the beginning. Defaults to `True`.
        input_state_max_bytes: The largest iterator state, in bytes, that is
            saved with each checkpoint; shuffle buffers can make it large. For a
            larger state, only the number of batches is saved, and a resumed
            call reads them again; 0 always does that. Defaults to 256 MiB.
        max_input_shapes: The number of batch shapes that each mode compiles,
            not counting the batch size; one more raises an error. Defaults to
            `None`, for any number, with one warning after 8.
        export_backend: The content of exports: "jax", for all code that JAX can
            trace, or "tensorflow", for TensorFlow ops, if `model_fn` uses only
            Keras layers and `keras.ops`. Defaults to "jax".
        export_timeout_secs: Seconds that each process of an export may take:
            the one that loads and runs the export once, and the one that
            rebuilds it as TensorFlow ops. `None` for no limit. Defaults to 600.
        checkpoint_format: The format of written checkpoints: "hdf5";
            "tensorflow", which TensorFlow reads; or "orbax", which flax and
            MaxText also read; or a name passed to `register_format`. All of
            them can be read. Defaults to `None`, for that of the front end of
            `model_fn`: "tensorflow" with TensorFlow graphs, and "hdf5"
            otherwise.
        host_timeout_secs: Seconds that processes wait for one of them that does
            not respond, or is behind the others, before all end. Defaults to
            30.
        layout_map: The layout of variables over the devices of a replica: a
            `keras.distribution.LayoutMap`, or a dict from regular expressions,
            which must match the entire path of a variable, to tuples. A tuple
            has for each dimension `"model"`, the axis that it is split over, or
            `None`; with `fsdp`, also `"batch"`, the axis of the replicas.
            Optimizer state has the layout of its variable. Defaults to `None`,
            which splits large variables along their largest dimension.
        shard_optimizer: Whether optimizer state is sharded over the replicas
            (ZeRO-1). Defaults to `False`.
        fsdp: Whether variables, gradients and optimizer state are sharded over
            the replicas (FSDP, ZeRO-3). Defaults to `False`.
        executables: A local folder of programs that
            `TPUEstimator.plan(save=...)` compiled: these are executed, others
            are compiled. Files in it are executed, so only trusted users may
            have write access. Defaults to `None`, for none.
        compilation_cache_dir: A directory, or its URL, in which JAX caches
            compiled programs, so that a later start skips compilations of a
            second or more. JAX has one such cache in a process; one that is
            already set, as by JAX_COMPILATION_CACHE_DIR, stays. Files in it are
            executed, so a local directory in which other users may write is
            not used. Defaults to `None`, for JAX's own setting.
        random_bits: The random number generator of initial values, dropout and
            `keras.random`: "threefry2x32", "rbg" or "unsafe_rbg". The last two
            are faster on a TPU. Defaults to `None`, for JAX's
            `jax_default_prng_impl`, which defaults to "threefry2x32".
        reduce_dtype: The dtype in which gradients are combined over devices,
            "float32" or "bfloat16", for each `CrossShardOptimizer` and `TrainOp`
            that sets none. Defaults to `None`, for that of each gradient.
        synchronize_batch_norm: Whether `keras.layers.BatchNormalization`
            normalizes over the examples of all replicas in training, as on one
            device. Defaults to `False`, for each replica separately.
        metric_writers: The receivers of the metrics of training and evaluation:
            "tensorboard", "jsonl", "wandb", "mlflow", `summary.MetricWriter`
            objects, or other objects with a method `write_scalars(step,
            scalars)`. Defaults to "tensorboard" and "jsonl".
        evaluation_master: Accepted; has no effect.
        master: Accepted; has no effect.
        cluster: Accepted; has no effect.
        session_config: Accepted; has no effect. The warning names the set
            fields of a `ConfigProto`.
        train_distribute: Accepted; has no effect.
        device_fn: Accepted; has no effect.
        protocol: Accepted; has no effect.
        eval_distribute: Accepted; has no effect.
        experimental_distribute: Accepted; has no effect.
        experimental_max_worker_delay_secs: Accepted; has no effect.
        session_creation_timeout_secs: Accepted; has no effect.
        checkpoint_save_graph_def: Accepted; has no effect.

    Raises:
        ValueError: A value is out of range, or two contradict each other.
        TypeError: An argument does not exist, or has a wrong type.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> config = kte.RunConfig(model_dir="/tmp/run", save_checkpoints_steps=50)
    >>> config.replace(keep_checkpoint_max=2)
    RunConfig(model_dir='/tmp/run', save_checkpoints_steps=50,
              save_checkpoints_secs=None, keep_checkpoint_max=2)
    """

    tpu_config: TPUConfig = option(TPUConfig())
    evaluation_master: str | None = without_effect(None, unread=("",))
    master: str | None = without_effect(None, unread=("",))
    cluster: object = without_effect(None)
    _: dataclasses.KW_ONLY
    model_dir: PathLike | None = option(None)
    tf_random_seed: int | None = option(None, is_int, "an int, or None for no seed")
    save_summary_steps: int | None = option(
        100, is_not_negative, ">= 0; 0 or None for none"
    )
    save_checkpoints_steps: int | None = option(
        _UNSET_STEPS, is_not_negative, ">= 0; 0 or None for none"
    )
    save_checkpoints_secs: float | None = option(
        _UNSET_SECS, is_not_negative, ">= 0; 0 or None for none"
    )
    session_config: object = without_effect(
        None, is_session_config, "a ConfigProto, or None, as it has no effect here"
    )
    keep_checkpoint_max: int | None = option(
        5, is_not_negative, ">= 0; 0 or None for all"
    )
    keep_checkpoint_every_n_hours: float | None = option(
        10000, is_positive, "> 0; leave it out for 10000"
    )
    log_step_count_steps: int | None = option(
        100, is_positive, "> 0, or None for no lines"
    )
    train_distribute: object = without_effect(None)
    device_fn: Callable[..., object] | None = without_effect(
        None,
        takes_op,
        "a function of one argument named 'op', or None, as it has no effect here",
    )
    protocol: str | None = without_effect(
        None, is_one_of("grpc", "grpc+verbs"), "None, 'grpc' or 'grpc+verbs'"
    )
    eval_distribute: object = without_effect(None)
    experimental_distribute: object = without_effect(None)
    experimental_max_worker_delay_secs: int | None = without_effect(
        None, is_int, "an int, or None"
    )
    session_creation_timeout_secs: int = without_effect(
        7200, is_positive, "> 0; leave it out, as it has no effect here"
    )
    checkpoint_save_graph_def: bool = without_effect(True)
    fast_dev_run: bool = option(False, is_bool, "True or False")
    stall_timeout_secs: float | None = option(
        None, is_positive, "> 0 seconds, or None for never"
    )
    progress: bool | str = option(
        "auto",
        lambda value: is_bool(value) or value == "auto",
        "True, False or 'auto'",
    )
    debug_nans: bool = option(False, is_bool, "True or False")
    micro_batches: int | None = option(
        1, is_count, "an int >= 1; 1 for the undivided batch"
    )
    dtype_policy: str | None = option(
        None,
        is_one_of("float32", "mixed_bfloat16"),
        "None, 'float32' or 'mixed_bfloat16', which keep variables in float32",
    )
    remat: str | None = option(
        None, is_one_of("activations", "full"), "None, 'activations' or 'full'"
    )
    keep_best: KeepBest | None = option(
        None,
        lambda value: isinstance(value, KeepBest),
        "None or a checkpoints.KeepBest, such as KeepBest('loss', mode='min')",
    )
    resume_input: bool = option(True, is_bool, "True or False")
    input_state_max_bytes: int = option(
        2**28,
        lambda value: is_int(value) and value >= 0,
        "an int >= 0, such as 2**28 for 256 MiB",
    )
    max_input_shapes: int | None = option(
        None, is_count, "an int >= 1, or None for any number"
    )
    export_backend: str = option(
        "jax", is_one_of("jax", "tensorflow"), "'jax' or 'tensorflow'"
    )
    export_timeout_secs: float | None = option(
        600, is_positive, "> 0 seconds, or None for no limit"
    )
    checkpoint_format: str | None = option(
        None,
        lambda value: value in formats.names(),
        "'hdf5', 'tensorflow' or 'orbax', a registered name, or None for the format of "
        "the front end",
    )
    host_timeout_secs: float = option(30, is_positive, "> 0 seconds")
    layout_map: Mapping[str, Any] | None = option(
        None,
        is_layout_map,
        "a dict or LayoutMap from regular expressions to tuples of the axis "
        "'model' and None, such as {'.*kernel': (None, 'model')}",
        is_hashable=False,
    )
    shard_optimizer: bool = option(False, is_bool, "a bool")
    fsdp: bool = option(False, is_bool, "a bool")
    executables: PathLike | None = option(None)
    compilation_cache_dir: PathLike | None = option(None)
    random_bits: str | None = option(
        None,
        is_one_of("threefry2x32", "rbg", "unsafe_rbg"),
        "'threefry2x32', 'rbg' or 'unsafe_rbg', or None for JAX's default",
    )
    reduce_dtype: Literal["float32", "bfloat16"] | None = option(
        None,
        is_one_of("float32", "bfloat16"),
        "'float32' or 'bfloat16', or None for the dtype of each gradient",
    )
    synchronize_batch_norm: bool = option(False, is_bool, "a bool")
    metric_writers: Any = option(("tensorboard", "jsonl"), is_hashable=False)
    _task: Task = dataclasses.field(init=False, repr=False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Lets the constructor store a field that a property of a subclass replaces."""
        super().__init_subclass__(**kwargs)
        for name, replaced in options_of(RunConfig).items():
            member = vars(cls).get(name)
            if isinstance(member, property) and member.fset is None:
                setattr(cls, name, member.setter(replaced.store))

    def __post_init__(self) -> None:
        check_cluster(self.cluster, self.master, self.session_config)
        self._set("_task", starting.read_task())
        self._set_interval()
        self._settle()
        self._set("model_dir", agreed_dir(self.model_dir, self._task.model_dir))
        # This comes before the fields of TF_CONFIG are set, because the user's code did
        # not write those.
        unread = set_without_effect(self)
        self._set_masters()
        # The levels from there to the user: this method, the generated
        # `__init__`, and the check of argument names.
        self._warn_of(unread, stacklevel=6)

    def replace(self, **kwargs: Any) -> "RunConfig":
        """Returns a copy with other values of some fields.

        Args:
            **kwargs: Values by name, except `master`, `evaluation_master` and
                `cluster`. Setting one of the `save_checkpoints_*` fields clears
                the other.

        Returns:
            A new `RunConfig`.

        Raises:
            ValueError: A field cannot be replaced, or a value is wrong.
            TypeError: A value has a wrong type.

        Example:

        >>> import keras_tpu_estimator as kte
        >>> kte.RunConfig().replace(save_checkpoints_steps=0)
        RunConfig(save_checkpoints_steps=0, save_checkpoints_secs=None)
        """
        _check_replaceable(kwargs)
        values = kwargs | cleared_interval(kwargs)
        new = copy.deepcopy(self)
        for name, value in values.items():
            object.__setattr__(new, name, value)
        new._settle()
        self._warn_of(set_without_effect(new, kwargs), stacklevel=4)
        return new

    def __hash__(self) -> int:
        options = options_of(RunConfig).items()
        return hash(tuple(getattr(self, n) for n, o in options if o.is_hashable))

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in set_fields(self).items()]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _warn_of(self, names: list[str], stacklevel: int) -> None:
        """Warns about fields that are set and have no effect."""
        warn_without_effect(names, stacklevel)

    def _set(self, name: str, value: object) -> None:
        """Normalises a field, unless it is a property of a subclass."""
        if not isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)

    def _set_interval(self) -> None:
        steps, secs = self.save_checkpoints_steps, self.save_checkpoints_secs
        if steps is _UNSET_STEPS and secs is _UNSET_SECS:
            secs = _DEFAULT_SAVE_SECS
        self._set("save_checkpoints_steps", None if steps is _UNSET_STEPS else steps)
        self._set("save_checkpoints_secs", None if secs is _UNSET_SECS else secs)

    def _settle(self) -> None:
        """Converts fields to their final types, and checks them."""
        if self.tpu_config is None:
            self._set("tpu_config", TPUConfig())
        if not isinstance(self.tpu_config, TPUConfig):
            raise TypeError(
                "`tpu_config`, the first argument of RunConfig, must be a "
                f"TPUConfig. Received: {shown(self.tpu_config)}. Pass other "
                "arguments by name, such as model_dir=..."
            )
        job_name = self._task.tpu_job_name
        if job_name and not self.tpu_config.tpu_job_name:
            self._set("tpu_config", self.tpu_config._replace(tpu_job_name=job_name))
        if self.model_dir is not None:
            self._set("model_dir", directory_string("`model_dir`", self.model_dir))
        self._set("metric_writers", ChosenWriters.from_setting(self.metric_writers))
        if self.compilation_cache_dir is not None:
            self._set(
                "compilation_cache_dir",
                directory_string("`compilation_cache_dir`", self.compilation_cache_dir),
            )
        if self.executables is not None:
            self._set(
                "executables",
                trusted.folder_string("`executables`", self.executables),
            )
        check_one_interval(self.save_checkpoints_steps, self.save_checkpoints_secs)
        check_fields(self)

    def _set_masters(self) -> None:
        master = self.master
        resolve = getattr(self.cluster, "master", None)
        if master is None and callable(resolve):
            master = resolve()
        if master is None:
            master = self._task.master
        evaluation = self.evaluation_master
        if evaluation is None:
            evaluation = self._task.evaluation_master
            if not evaluation and self.task_type != "evaluator":
                evaluation = master
        self._set("master", master)
        self._set("evaluation_master", evaluation)


def set_fields(config: RunConfig) -> dict[str, Any]:
    """Returns the fields of a configuration that differ from `RunConfig()`."""
    # A front end may have its own class of `TPUConfig`.
    defaults = _settled_defaults() | {"tpu_config": type(config.tpu_config)()}
    return {
        name: getattr(config, name)
        for name, default in defaults.items()
        if getattr(config, name) != default
    }


def in_cluster(config: RunConfig, cluster: Cluster) -> RunConfig:
    """Returns the configuration of a process that has joined a cluster."""
    new = copy.deepcopy(config)
    new._set("_task", config._task.in_cluster(cluster))
    return new


def _settled_defaults() -> dict[str, object]:
    """Returns the fields of a `RunConfig()` of a process without TF_CONFIG."""
    options = options_of(RunConfig).items()
    return {name: option.default for name, option in options} | {
        "master": "",
        "evaluation_master": "",
        "save_checkpoints_steps": None,
        "save_checkpoints_secs": _DEFAULT_SAVE_SECS,
    }


def _check_replaceable(names: Iterable[str]) -> None:
    allowed = [name for name in _settled_defaults() if name not in _NOT_REPLACEABLE]
    for name in names:
        if name not in allowed:
            raise ValueError(
                f"The field {name!r} of RunConfig cannot be replaced, unlike "
                f"{allowed}.{did_you_mean(name, allowed)} Make a new RunConfig."
            )
