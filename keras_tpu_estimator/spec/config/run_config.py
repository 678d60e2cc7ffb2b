"""The configuration of an estimator's runs."""

import copy
import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from keras_tpu_estimator.files.directory.keep_best import KeepBest
from keras_tpu_estimator.ground.base.field_checks import directory_string
from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.suggestions import did_you_mean
from keras_tpu_estimator.ground.base.suggestions import suggesting
from keras_tpu_estimator.ground.base.types import PathLike
from keras_tpu_estimator.ground.hosts import starting
from keras_tpu_estimator.ground.hosts.cluster import Cluster
from keras_tpu_estimator.ground.hosts.task import Task
from keras_tpu_estimator.ground.storage import trusted
from keras_tpu_estimator.spec.config.options import ChosenWriters
from keras_tpu_estimator.spec.config.options import check_cluster
from keras_tpu_estimator.spec.config.options import check_fields
from keras_tpu_estimator.spec.config.options import check_one_interval
from keras_tpu_estimator.spec.config.options import set_without_effect
from keras_tpu_estimator.spec.config.options import warn_without_effect
from keras_tpu_estimator.spec.config.tpu_config import TPUConfig

_DEFAULT_SAVE_SECS = 600
_NOT_REPLACEABLE = ("master", "evaluation_master", "cluster")


class _Unset:
    """A default that differs from the same value set by the caller.

    Attributes:
        value: The value that is used when the caller sets nothing.
    """

    def __init__(self, value: float | None) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


_UNSET_STEPS: Any = _Unset(None)
_UNSET_SECS: Any = _Unset(_DEFAULT_SAVE_SECS)


@suggesting
@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Where an estimator's files go, how often, and how it uses the cores.

    The counterpart of `tf.compat.v1.estimator.tpu.RunConfig`. Fields that have
    no meaning on JAX are accepted, and those that are set are named in one
    warning. What the environment says of this process and of others, such as
    TF_CONFIG, is read when one is made; nobody is joined before a
    `TPUEstimator` is made, or `initialize` is called.

    Args:
        tpu_config: A `TPUConfig`. Defaults to `TPUConfig()`.
        model_dir: Directory of checkpoints and event files, or its URL,
            stored as a string. Defaults to that of TF_CONFIG, or to none.
        tf_random_seed: Makes initial values and random layers repeatable.
            Defaults to `None`.
        save_summary_steps: Steps between summaries; 0 or `None` for none.
            Defaults to 100.
        save_checkpoints_steps: Steps between checkpoints; 0 or `None` for
            none. Set only one of this and `save_checkpoints_secs`. Defaults
            to `None`.
        save_checkpoints_secs: Seconds between checkpoints; 0 or `None` for
            none. Defaults to 600, or to `None` if `save_checkpoints_steps` is
            set.
        keep_checkpoint_max: How many checkpoints to keep; 0 or `None` for
            all. Defaults to 5.
        keep_checkpoint_every_n_hours: Hours after which one more is kept for
            ever. Defaults to 10000.
        log_step_count_steps: Steps between log lines; `None` for none.
            Defaults to 100.
        fast_dev_run: Whether this is only a trial: one step of `train`, one of
            `evaluate`, one batch of `predict`, with all files in a temporary
            directory. Defaults to `False`.
        stall_timeout_secs: After so many seconds without the end of a loop,
            the stacks of all threads are printed to standard error, again and
            again. The first one begins with the call of `input_fn`. Defaults
            to `None`, for never.
        progress: Whether a bar shows the steps of `train`, `evaluate` and
            `predict`, their rate and the time left, and a line shows that steps
            are being traced and compiled. Defaults to "auto": if standard
            output is a terminal, or in a notebook.
        debug_nans: Whether training finds the operation that the first NaN
            comes from, with its line in `model_fn`. It is slower, and runs on
            one core. Defaults to `False`.
        micro_batches: Into how many micro-batches each core cuts its batch in
            training. Their gradients are accumulated in one step, which takes
            the memory of one of them. Defaults to 1.
        dtype_policy: The Keras dtype policy of the layers that `model_fn`
            makes: "mixed_bfloat16" or "float32". Defaults to `None`, for the
            one of `keras.config.set_dtype_policy`.
        remat: What is computed anew in the backward pass, to save memory:
            "activations" for all but matrix products and convolutions, "full"
            for all but a few tensors in between. Defaults to `None`, for
            nothing.
        keep_best: A `checkpoints.KeepBest`, which says by which metric of
            `evaluate` a checkpoint is the best; that one is kept beside the
            last `keep_checkpoint_max`. Defaults to `None`.
        resume_input: Whether `train`, when an earlier call was interrupted,
            reads its input on from where that had come to. With `False`, every
            call reads it from the beginning. Defaults to `True`.
        input_state_max_bytes: How large a state of the input, such as a shuffle
            buffer, may be that is saved beside each checkpoint. The batches of
            a larger one are counted, and read again by a call that goes on; 0
            counts them always. Defaults to 256 MiB.
        max_input_shapes: The number of batch shapes that each mode compiles,
            not counting the batch size; the next one raises an error. Defaults
            to `None`, for any number, with one warning after 8.
        export_backend: What exports are made of: "jax", for all that JAX can
            trace, or "tensorflow", for ops of TensorFlow, if `model_fn` has
            only Keras's layers and `keras.ops`. Defaults to "jax".
        export_timeout_secs: Seconds that a process of an export may take: the
            one that loads it and runs it once, and the one that rebuilds it as
            ops of TensorFlow. `None` for any time. Defaults to 600.
        checkpoint_format: What checkpoints are written as: "hdf5";
            "tensorflow", for files that TensorFlow reads; or "orbax", for
            what flax and MaxText read, too. All are read. Defaults to
            `None`, for "tensorflow" if `model_fn` is written for TF1, and
            "hdf5" otherwise.
        host_timeout_secs: Seconds that hosts wait for one of them that is
            silent, or behind the others, before all end. Defaults to 30.
        layout_map: How variables lie on the cores of a replica: a
            `keras.distribution.LayoutMap`, or a dict from regular expressions,
            which whole paths of variables match, to tuples that have for each
            dimension the axis it is split over, `"model"`, or `None`. A slot
            lies as its variable. Defaults to `None`, which splits large
            variables along their largest dimension.
        shard_optimizer: Whether the replicas share what optimizers keep, each
            having a part of every slot. Defaults to `False`.
        executables: A folder of this machine with programs that
            `TPUEstimator.plan(save=...)` has compiled: those that are there
            are run, and others are compiled. What is read is run, so nobody
            else may be able to write there. Defaults to `None`, for none.
        compilation_cache_dir: A directory, or its URL, in which JAX keeps
            compiled programs, so that a later start skips what took a second
            or more to compile. JAX has one such cache in a process, and one
            that is already chosen, as by JAX_COMPILATION_CACHE_DIR, stays. What
            is read is run, so nobody else may be able to write there. Defaults
            to `None`, for JAX's own setting.
        random_bits: The generator of random bits, of initial values, dropout
            and `keras.random`: "threefry2x32", "rbg" or "unsafe_rbg". The last
            two take a TPU less time. Defaults to `None`, which is JAX's
            `jax_default_prng_impl`, and that "threefry2x32".
        metric_writers: What takes what training and evaluation report:
            "tensorboard", "jsonl", "wandb", "mlflow", `summary.MetricWriter`
            objects, or others with a `write_scalars(step, scalars)`. Defaults
            to "tensorboard" and "jsonl".
        evaluation_master: Accepted; has no effect.
        master: Accepted; has no effect.
        cluster: Accepted; has no effect.
        session_config: Accepted; has no effect. The warning names the fields of
            a `ConfigProto` that are set.
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
        TypeError: There is no such argument, or one is of a wrong type.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> config = kte.RunConfig(model_dir="/tmp/run", save_checkpoints_steps=50)
    >>> config.replace(keep_checkpoint_max=2)
    RunConfig(model_dir='/tmp/run', save_checkpoints_steps=50,
              save_checkpoints_secs=None, keep_checkpoint_max=2)
    """

    tpu_config: TPUConfig = TPUConfig()
    evaluation_master: str | None = None
    master: str | None = None
    cluster: object = None
    _: dataclasses.KW_ONLY
    model_dir: PathLike | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = _UNSET_STEPS
    save_checkpoints_secs: float | None = _UNSET_SECS
    session_config: object = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float | None = 10000
    log_step_count_steps: int | None = 100
    train_distribute: object = None
    device_fn: Callable[..., object] | None = None
    protocol: str | None = None
    eval_distribute: object = None
    experimental_distribute: object = None
    experimental_max_worker_delay_secs: int | None = None
    session_creation_timeout_secs: int = 7200
    checkpoint_save_graph_def: bool = True
    fast_dev_run: bool = False
    stall_timeout_secs: float | None = None
    progress: bool | str = "auto"
    debug_nans: bool = False
    micro_batches: int | None = 1
    dtype_policy: str | None = None
    remat: str | None = None
    keep_best: KeepBest | None = None
    resume_input: bool = True
    input_state_max_bytes: int = 2**28
    max_input_shapes: int | None = None
    export_backend: str = "jax"
    export_timeout_secs: float | None = 600
    checkpoint_format: str | None = None
    host_timeout_secs: float = 30
    layout_map: Mapping[str, Any] | None = dataclasses.field(
        default=None, hash=False
    )
    shard_optimizer: bool = False
    executables: PathLike | None = None
    compilation_cache_dir: PathLike | None = None
    random_bits: str | None = None
    metric_writers: Any = dataclasses.field(
        default=("tensorboard", "jsonl"), hash=False
    )
    _task: Task = dataclasses.field(init=False, repr=False, hash=False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Lets a property of a subclass stand for a field.

        `super()` returns the value that the constructor got.
        """
        super().__init_subclass__(**kwargs)
        for name, own in list(vars(cls).items()):
            is_field = name in RunConfig.__dataclass_fields__
            if is_field and isinstance(own, property) and own.fset is None:
                keep = functools.partial(_keep, name)
                setattr(cls, name, own.setter(keep))

    def __post_init__(self) -> None:
        check_cluster(self.cluster, self.master, self.session_config)
        self._set("_task", _read_task())
        self._set_interval()
        self._settle()
        self._set("model_dir", _agreed_dir(self.model_dir, self._task))
        # Before TF_CONFIG's are set: nobody wrote those into this program.
        without_effect = set_without_effect(self)
        self._set_masters()
        # From there, here, the generated __init__, and what checks the names of
        # arguments, to the user.
        self._warn_of(without_effect, stacklevel=6)

    @property
    def task_type(self) -> str:
        """The type of this process, from TF_CONFIG."""
        return self._task.task_type

    @property
    def task_id(self) -> int:
        """Its number among those of its type."""
        return self._task.task_id

    @property
    def is_chief(self) -> bool:
        """Whether this process saves checkpoints."""
        return self._task.is_chief

    @property
    def cluster_spec(self) -> dict[str, Any]:
        """Addresses of all processes by type."""
        return self._task.addresses()

    @property
    def num_ps_replicas(self) -> int:
        """Number of parameter servers."""
        return self._task.num_ps_replicas

    @property
    def num_worker_replicas(self) -> int:
        """Number of processes that train."""
        return self._task.num_worker_replicas

    @property
    def global_id_in_cluster(self) -> int | None:
        """Number of this process in the cluster; `None` for an evaluator."""
        return self._task.global_id_in_cluster

    @property
    def service(self) -> Mapping[str, Any] | None:
        """The `service` of TF_CONFIG."""
        return copy.deepcopy(self._task.service)

    def replace(self, **kwargs: Any) -> "RunConfig":
        """A copy with other values of some fields.

        Args:
            **kwargs: Values by name; not `master`, `evaluation_master` or
                `cluster`. Setting one of the `save_checkpoints_*` fields
                clears the other.

        Returns:
            A new `RunConfig`.

        Raises:
            ValueError: A field may not be replaced, or a value is wrong.
            TypeError: A value is of a wrong type.

        Example:

        >>> import keras_tpu_estimator as kte
        >>> kte.RunConfig().replace(save_checkpoints_steps=0)
        RunConfig(save_checkpoints_steps=0, save_checkpoints_secs=None)
        """
        _check_replaceable(kwargs)
        values = kwargs | _cleared_interval(kwargs)
        new = copy.deepcopy(self)
        for name, value in values.items():
            object.__setattr__(new, name, value)
        new._settle()
        self._warn_of(set_without_effect(new, kwargs), stacklevel=4)
        return new

    def __repr__(self) -> str:
        shown = [f"{name}={each!r}" for name, each in set_fields(self).items()]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _warn_of(self, without_effect: list[str], stacklevel: int) -> None:
        """Warns of fields that are set and have no effect."""
        warn_without_effect(without_effect, stacklevel)

    def _set(self, name: str, value: object) -> None:
        """Normalises a field, unless it is a property of a subclass."""
        if not isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)

    def _set_interval(self) -> None:
        steps, secs = self.save_checkpoints_steps, self.save_checkpoints_secs
        if steps is _UNSET_STEPS and secs is _UNSET_SECS:
            secs = _DEFAULT_SAVE_SECS
        self._set(
            "save_checkpoints_steps", None if steps is _UNSET_STEPS else steps
        )
        self._set(
            "save_checkpoints_secs", None if secs is _UNSET_SECS else secs
        )

    def _settle(self) -> None:
        """Gives fields the types that they are read with; checks them."""
        if self.tpu_config is None:
            self._set("tpu_config", TPUConfig())
        if not isinstance(self.tpu_config, TPUConfig):
            raise TypeError(
                "`tpu_config`, the first argument of RunConfig, should be a "
                f"TPUConfig. Received: {shown(self.tpu_config)}. Give other "
                "arguments by name, such as model_dir=..."
            )
        if self.model_dir is not None:
            self._set(
                "model_dir", directory_string("`model_dir`", self.model_dir)
            )
        self._set("metric_writers", ChosenWriters.of(self.metric_writers))
        if self.compilation_cache_dir is not None:
            self._set(
                "compilation_cache_dir",
                directory_string(
                    "`compilation_cache_dir`", self.compilation_cache_dir
                ),
            )
        if self.executables is not None:
            self._set(
                "executables",
                trusted.folder_string("`executables`", self.executables),
            )
        check_one_interval(
            self.save_checkpoints_steps, self.save_checkpoints_secs
        )
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


class _Kept:
    """The attribute of a class that `super()` finds in place of a field's.

    Args:
        name: The name of the field.
        default: What the class itself has.
    """

    def __init__(self, name: str, default: object):
        self._name = name
        self._default = default

    def __get__(self, config: RunConfig | None, owner: type) -> Any:
        if config is None:
            return self._default
        return vars(config).get(self._name, self._default)


def _keep(name: str, config: RunConfig, value: object) -> None:
    vars(config)[name] = value.value if isinstance(value, _Unset) else value


for _field in dataclasses.fields(RunConfig):
    if _field.init:
        setattr(RunConfig, _field.name, _Kept(_field.name, _field.default))


def set_fields(config: RunConfig) -> dict[str, Any]:
    """The fields of a configuration that are not as in `RunConfig()`.

    Args:
        config: The configuration.

    Example:

    >>> set_fields(RunConfig(keep_checkpoint_max=2))
    {'keep_checkpoint_max': 2}
    """
    return {
        name: getattr(config, name)
        for name, default in _settled_defaults().items()
        if getattr(config, name) != default
    }


def in_cluster(config: RunConfig, cluster: Cluster) -> RunConfig:
    """A configuration of a process that has joined others.

    Args:
        config: One that was made before, as the environment told.
        cluster: The cluster, of which a server of metadata may have told.
    """
    new = copy.deepcopy(config)
    new._set("_task", config._task.in_cluster(cluster))
    return new


def _settled_defaults() -> dict[str, object]:
    """The fields of a `RunConfig()` of a process alone."""
    fields = dataclasses.fields(RunConfig)
    defaults = {field.name: field.default for field in fields if field.init}
    return defaults | {
        "master": "",
        "evaluation_master": "",
        "save_checkpoints_steps": None,
        "save_checkpoints_secs": _DEFAULT_SAVE_SECS,
    }


def _read_task() -> Task:
    """Reads the place of this process among others.

    The addresses of TF_CONFIG are checked when the cluster is joined. Programs
    that only read them may have `host0:0` there.
    """
    task = Task.from_environment()
    if task.cluster_spec:
        return task
    return Task.from_environment(starting.told_cluster())


def _agreed_dir(given: PathLike | None, task: Task) -> PathLike | None:
    """The directory of the constructor or of TF_CONFIG."""
    if given and task.model_dir and given != task.model_dir:
        raise ValueError(
            "`model_dir` is set in RunConfig and in TF_CONFIG, differently. "
            f"Received: {given!r} and {task.model_dir!r}. Set one of them."
        )
    return given or task.model_dir


def _check_replaceable(names: Iterable[str]) -> None:
    allowed = [
        name for name in _settled_defaults() if name not in _NOT_REPLACEABLE
    ]
    for name in names:
        if name not in allowed:
            raise ValueError(
                f"The field {name!r} of RunConfig cannot be replaced. Expected "
                f"some of {allowed}.{did_you_mean(name, allowed)} Make a new "
                "RunConfig."
            )


def _cleared_interval(kwargs: Mapping[str, object]) -> dict[str, None]:
    """The interval that a new one puts out of force."""
    by_steps, by_secs = "save_checkpoints_steps", "save_checkpoints_secs"
    for given, other in ((by_steps, by_secs), (by_secs, by_steps)):
        if kwargs.get(given) is not None and kwargs.get(other) is None:
            return {other: None}
    return {}
