"""The configuration of an estimator's runs."""

import copy
import dataclasses
import inspect
import os
import warnings
from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.cluster import Task
from keras_tpu_estimator.config import TPUConfig

_DEFAULT_SAVE_SECS = 600
_NOT_REPLACEABLE = ("master", "evaluation_master", "cluster")


class _Unset:
    """The default of arguments whose absence means something."""

    def __repr__(self) -> str:
        return "<unset>"


_UNSET = _Unset()


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Where an estimator's files go, how often, and how it uses the cores.

    The counterpart of `tf.compat.v1.estimator.tpu.RunConfig`. Fields that have
    no meaning on JAX are accepted and named in one warning.

    Args:
        tpu_config: A `TPUConfig`. Defaults to `TPUConfig()`.
        evaluation_master: Accepted; has no effect.
        master: Accepted; has no effect.
        cluster: Accepted; has no effect.
        model_dir: Directory of checkpoints and event files. Defaults to that
            of TF_CONFIG, or to none.
        tf_random_seed: Makes initial values and random layers repeatable.
            Defaults to `None`.
        save_summary_steps: Steps between summaries; 0 or `None` for none.
            Defaults to 100.
        save_checkpoints_steps: Steps between checkpoints; 0 or `None` for
            none. Not together with seconds.
        save_checkpoints_secs: Seconds between checkpoints. Defaults to 600 if
            neither is given.
        session_config: Accepted; has no effect.
        keep_checkpoint_max: How many checkpoints to keep; 0 or `None` for
            all. Defaults to 5.
        keep_checkpoint_every_n_hours: Hours after which one more is kept for
            ever. Defaults to 10000.
        log_step_count_steps: Steps between log lines; `None` for none.
            Defaults to 100.
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
        TypeError: There is no such argument.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> config = kte.RunConfig(model_dir="/tmp/run", save_checkpoints_steps=50)
    >>> config.replace(keep_checkpoint_max=2)
    RunConfig(model_dir='/tmp/run', save_checkpoints_steps=50,
              save_checkpoints_secs=None, keep_checkpoint_max=2)
    """

    tpu_config: TPUConfig | None = None
    evaluation_master: str | None = None
    master: str | None = None
    cluster: Any = None
    model_dir: str | os.PathLike | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: Any = _UNSET
    save_checkpoints_secs: Any = _UNSET
    session_config: Any = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float | None = 10000
    log_step_count_steps: int | None = 100
    train_distribute: Any = None
    device_fn: Callable[..., Any] | None = None
    protocol: str | None = None
    eval_distribute: Any = None
    experimental_distribute: Any = None
    experimental_max_worker_delay_secs: int | None = None
    session_creation_timeout_secs: int = 7200
    checkpoint_save_graph_def: bool = True
    _task: Task = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        task = Task.from_environment()
        self._set("_task", task)
        self._set_checkpoint_interval()
        if self.tpu_config is None:
            self._set("tpu_config", TPUConfig())
        self._set("model_dir", _model_dir(self.model_dir, task.model_dir))
        _check_values(self)
        self._warn_of_fields_without_effect()
        self._set_masters()

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
    def cluster_spec(self) -> dict[str, list[str]]:
        """Addresses of all processes by type."""
        return dict(self._task.cluster_spec)

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
        """Number of this process among all but evaluators."""
        return self._task.global_id_in_cluster

    @property
    def service(self) -> Any:
        """The `service` of TF_CONFIG."""
        return self._task.service

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
        """
        names = [f.name for f in dataclasses.fields(self) if f.init]
        allowed = [name for name in names if name not in _NOT_REPLACEABLE]
        for name in kwargs:
            if name not in allowed:
                raise ValueError(
                    f"The field {name!r} of RunConfig cannot be replaced. "
                    f"Expected some of {allowed}."
                )
        for given, other in (
            ("save_checkpoints_steps", "save_checkpoints_secs"),
            ("save_checkpoints_secs", "save_checkpoints_steps"),
        ):
            if kwargs.get(given) is not None:
                kwargs.setdefault(other, None)
        values = {name: getattr(self, name) for name in allowed}
        with warnings.catch_warnings():
            # The user has been told when this one was made.
            warnings.simplefilter("ignore", UserWarning)
            return RunConfig(**copy.deepcopy(values) | kwargs)

    def __repr__(self) -> str:
        plain = _defaults()
        shown = [
            f"{name}={getattr(self, name)!r}"
            for name, default in plain.items()
            if getattr(self, name) != default
        ]
        return f"RunConfig({', '.join(shown)})"

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _set_checkpoint_interval(self) -> None:
        steps, secs = self.save_checkpoints_steps, self.save_checkpoints_secs
        if steps is _UNSET and secs is _UNSET:
            steps, secs = None, _DEFAULT_SAVE_SECS
        steps = None if steps is _UNSET else steps
        secs = None if secs is _UNSET else secs
        if steps is not None and secs is not None:
            raise ValueError(
                "Cannot set both `save_checkpoints_steps` and "
                f"`save_checkpoints_secs`. Received: {steps} and {secs}. Set "
                "one of them."
            )
        self._set("save_checkpoints_steps", steps)
        self._set("save_checkpoints_secs", secs)

    def _warn_of_fields_without_effect(self) -> None:
        names = [
            name
            for name, default in _WITHOUT_EFFECT.items()
            if getattr(self, name) != default
        ]
        if isinstance(self.tpu_config, TPUConfig):
            names += [
                f"TPUConfig.{n}" for n in self.tpu_config.without_effect()
            ]
        if names:
            # Out of __post_init__ and the generated __init__.
            warnings.warn(
                "These fields of RunConfig are accepted for compatibility and "
                f"have no effect with JAX: {', '.join(names)}.",
                UserWarning,
                stacklevel=4,
            )

    def _set_masters(self) -> None:
        if self.master is not None and self.cluster is not None:
            raise ValueError(
                "Cannot set both `master` and `cluster`. Received: "
                f"master={self.master!r}, cluster={self.cluster!r}."
            )
        master = self.master
        if master is None and self.cluster is not None:
            master = self.cluster.master()
        if master is None:
            master = self._task.master
        evaluation = self.evaluation_master
        if evaluation is None:
            evaluation = self._task.evaluation_master
            if not evaluation and self.task_type != "evaluator":
                evaluation = master
        self._set("master", master)
        self._set("evaluation_master", evaluation)


_WITHOUT_EFFECT = {
    "evaluation_master": None,
    "master": None,
    "cluster": None,
    "session_config": None,
    "train_distribute": None,
    "device_fn": None,
    "protocol": None,
    "eval_distribute": None,
    "experimental_distribute": None,
    "experimental_max_worker_delay_secs": None,
    "session_creation_timeout_secs": 7200,
    "checkpoint_save_graph_def": True,
}


def _defaults() -> dict[str, Any]:
    """What the fields of a `RunConfig()` are."""
    fields = dataclasses.fields(RunConfig)
    defaults = {field.name: field.default for field in fields if field.init}
    return defaults | {
        "tpu_config": TPUConfig(),
        "master": "",
        "evaluation_master": "",
        "save_checkpoints_steps": None,
        "save_checkpoints_secs": _DEFAULT_SAVE_SECS,
    }


def _model_dir(given: Any, of_environment: str | None) -> str | None:
    if given is None:
        return of_environment
    directory = os.fspath(given)
    if not directory:
        raise ValueError(
            "`model_dir` should be a path or None. Received an empty string."
        )
    if of_environment and directory != of_environment:
        raise ValueError(
            "`model_dir` is set in RunConfig and in TF_CONFIG, differently. "
            f"Received: {directory!r} and {of_environment!r}."
        )
    return directory


def _check_values(config: RunConfig) -> None:
    for name, is_valid, expected in _CHECKS:
        value = getattr(config, name)
        if value is not None and not is_valid(value):
            raise ValueError(
                f"`{name}` should be {expected}. Received: {value!r}"
            )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _takes_op(function: Any) -> bool:
    return callable(function) and list(
        inspect.signature(function).parameters
    ) == ["op"]


_CHECKS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("tf_random_seed", _is_int, "an int"),
    ("save_summary_steps", lambda v: _is_number(v) and v >= 0, ">= 0"),
    ("save_checkpoints_steps", lambda v: _is_number(v) and v >= 0, ">= 0"),
    ("save_checkpoints_secs", lambda v: _is_number(v) and v >= 0, ">= 0"),
    ("keep_checkpoint_max", lambda v: _is_number(v) and v >= 0, ">= 0"),
    (
        "keep_checkpoint_every_n_hours",
        lambda v: _is_number(v) and v > 0,
        "> 0",
    ),
    ("log_step_count_steps", lambda v: _is_number(v) and v > 0, "> 0"),
    ("device_fn", _takes_op, "a function of one argument named 'op'"),
    (
        "protocol",
        lambda v: v in ("grpc", "grpc+verbs"),
        "None, 'grpc' or 'grpc+verbs'",
    ),
    ("experimental_max_worker_delay_secs", _is_int, "an int"),
    (
        "session_creation_timeout_secs",
        lambda v: _is_number(v) and v > 0,
        "> 0",
    ),
)
