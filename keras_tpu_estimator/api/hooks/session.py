"""Sessions: access of hooks to values by name, and to saving and evaluation."""

import functools
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from keras_tpu_estimator.api.hooks.loop_results import LoopResults
from keras_tpu_estimator.base.common.logs import warn_once
from keras_tpu_estimator.base.common.shown import plain_name
from keras_tpu_estimator.base.common.types import InputFn, PathLike
from keras_tpu_estimator.files.directory.retention import Retention

_NO_FEED = (
    "Values cannot be fed into a compiled device loop. Put the value into "
    "the features that `input_fn` yields, or into `params`."
)


def check_names(argument: str, fetches: Any) -> None:
    """Checks that an argument is a name, or a pytree of names."""
    _map(functools.partial(check_name, argument), fetches)


def names_in(fetches: Any) -> set[str]:
    """Returns the names in a pytree of names."""
    names: set[str] = set()
    _map(lambda name: names.add(plain_name(name)), fetches)
    return names


def values_of(fetches: Any, value_of: Callable[[str], Any]) -> Any:
    """Returns a pytree of names with values in their place; its keys stay as they are.

    >>> values_of({"loss:0": ["loss:0"]}, {"loss": 0.5}.__getitem__)
    {'loss:0': [0.5]}
    """
    return _map(lambda name: value_of(plain_name(name)), fetches)


def _map(function: Callable[[str], Any], fetches: Any) -> Any:
    """Maps a function over the names in a pytree."""
    # The most frequent case, which the other checks would slow down.
    if isinstance(fetches, str):
        return function(fetches)
    if isinstance(fetches, Mapping):
        return {key: _map(function, value) for key, value in fetches.items()}
    if isinstance(fetches, list | tuple):
        values = [_map(function, value) for value in fetches]
        # The constructor of a named tuple takes separate fields.
        make = getattr(fetches, "_make", type(fetches))
        return make(values)
    return function(fetches)


def check_name(argument: str, name: Any) -> None:
    """Checks that an argument is one name."""
    if not isinstance(name, str):
        raise TypeError(
            f"`{argument}` must be given by name. Expected 'loss', "
            "'global_step', the path of a variable, or a key of predictions. "
            f"Received: {reprlib.repr(name)} of type {type(name).__name__}. "
            'Name a tensor in model_fn with kte.identity(x, name="...") '
            "and pass that name; for a variable pass its `path`."
        )


def check_retention(retention: Any) -> None:
    """Raises a TypeError for a value that is not a `Retention` or `None`."""
    if retention is not None and not isinstance(retention, Retention):
        raise TypeError(
            "`retention` must be a kte.checkpoints.Retention. Received: "
            f"{retention!r}. Pass Retention(max_to_keep)."
        )


def refuse_feed(argument: str, feed: Any) -> None:
    """Raises an error for values that cannot be fed."""
    if feed:
        raise ValueError(
            f"`{argument}` must be None. Received: {reprlib.repr(feed)}. {_NO_FEED}"
        )


def warn_of_options(owner: str, options: Any, name: str = "options") -> None:
    """Logs one warning if options of a run are set."""
    if options is not None:
        warn_once(
            f"`{name}` of {owner} has no effect, because the steps of a run "
            "are one program. Use hooks.ProfilerHook to trace it."
        )


T = TypeVar("T")


class MetricCounts(Protocol):
    """Metrics that are counted from one `reset` to the next."""

    def result(self) -> dict[str, Any]:
        """Returns the metrics by name, of all steps of completed runs."""

    def counts(self) -> dict[str, Any]:
        """Returns the counts of those steps, for `resume`."""

    def resume(self, counts: Mapping[str, Any]) -> None:
        """Continues from counts, before the first step."""

    def reset(self) -> None:
        """Resets the counts."""


class NoCounts:
    """The counts of a run without metrics."""

    def result(self) -> dict[str, Any]:
        """Returns an empty dict."""
        return {}

    def counts(self) -> dict[str, Any]:
        """Returns an empty dict."""
        return {}

    def resume(self, counts: Mapping[str, Any]) -> None:
        """Does nothing."""

    def reset(self) -> None:
        """Does nothing."""


class InputEndsError(Exception):
    """The end of the input, where a hook runs operations on a batch."""


class ResultsHolder(Protocol):
    """An object with the results of the last loop, which each loop replaces."""

    @property
    def results(self) -> LoopResults:
        """The results of the last loop."""


class Session:
    """The access of a hook to a run: names and their current values.

    Args:
        fetch: Returns the value of a name: `"global_step"`, `"loss"`, the path
            of a variable, or the name of a requested tensor.
        live: The Keras model in the loop, for callbacks. Defaults to `None`.
        wait: Waits for the last run. By default it returns immediately.
        graph: The graph for hooks of TensorFlow. Defaults to `None`.
        loop: The holder of the last loop's results. Defaults to one before the first
            loop.
    """

    def __init__(
        self,
        fetch: Callable[[str], Any],
        live: Any = None,
        wait: Callable[[], object] | None = None,
        graph: Any = None,
        loop: ResultsHolder | None = None,
    ):
        self._fetch = fetch
        self._loop = loop
        self.live = live
        self._wait = wait
        self.graph = graph

    def run(self, fetches: Any) -> Any:
        """Returns the current values of a name, or of a pytree of names.

        Args:
            fetches: `"global_step"`, `"loss"`, a variable's path, a key of
                predictions or a name of `kte.identity` that `before_run`
                requested, or a list, tuple or dict of these. A name may end
                with `":0"`.

        Returns:
            NumPy values in the same pytree.

        Raises:
            KeyError: The name does not exist, or was not requested.
            TypeError: It is not a name.

        Example:

        >>> from keras_tpu_estimator.api.hooks.session import Session
        >>> session = Session({"loss": 0.5, "global_step": 3}.__getitem__)
        >>> session.run({"loss": "loss", "rest": ["global_step:0"]})
        {'loss': array(0.5), 'rest': [array(3)]}
        """
        check_names("fetches", fetches)
        return values_of(fetches, lambda name: np.asarray(self._fetch(name)))

    @property
    def results(self) -> LoopResults:
        """The results of the last loop, or of none before the first one."""
        return LoopResults(step=0) if self._loop is None else self._loop.results

    def wait(self) -> None:
        """Waits until the devices have completed the last run."""
        if self._wait is not None:
            self._wait()

    def seconds_since_run(self) -> float:
        """Waits for the last run; returns the seconds since its completion."""
        self.wait()
        return 0.0

    def saved_step(self, directory: PathLike) -> int | None:
        """Returns the step of this session's last checkpoint in a directory.

        Args:
            directory: The directory of checkpoints.

        Returns:
            The step of the checkpoint that was written last, or that the
            session started from; `None` if neither exists.

        Raises:
            RuntimeError: The session is not one of `train`.
            Exception: The last checkpoint could not be written.
        """
        raise _only_in_training("save checkpoints")

    def save_checkpoint(
        self,
        directory: PathLike,
        basename: str = "model.ckpt",
        wait: bool = True,
        retention: Retention | None = None,
    ) -> None:
        """Writes the current values into a checkpoint.

        Args:
            directory: The directory to write to.
            basename: Prefix of its name. Defaults to `'model.ckpt'`.
            wait: Whether to return only when it is on the disk. Otherwise it is
                written while training continues. The next save, the end of
                training and `saved_step` wait for it, and raise its errors.
                Defaults to `True`.
            retention: A `kte.checkpoints.Retention`, the checkpoints to keep in
                the directory. Defaults to `None`, for those of `RunConfig`.

        Raises:
            RuntimeError: The session is not one of `train`.
            TypeError: `retention` is not a `Retention`.
        """
        raise _only_in_training("save checkpoints")

    def run_on_batch(self, operations: Sequence[str]) -> dict[str, Any]:
        """Runs operations of a TensorFlow graph on the next batch of the input.

        Args:
            operations: The names of operations, and of tensors to return.

        Returns:
            The values of the tensors by name.

        Raises:
            InputEndsError: There is no batch.
            RuntimeError: The session is not one of `train`.
        """
        raise _only_in_training("run operations on a batch")

    def is_so_anywhere(self, is_so: bool) -> bool:
        """Returns whether a condition holds on any host; all hosts must call this."""
        return is_so

    def is_due_anywhere(self, name: str, is_due: bool) -> bool:
        """Returns whether an action is due on any host, by the clock of that host.

        Hosts agree at the end of a run, so that the action happens on all of
        them after the next run.

        Args:
            name: The name of the action, equal on all hosts.
            is_due: Whether it is due on this host.
        """
        del name
        return is_due

    def by_chief(self, action: Callable[[], T]) -> T:
        """Calls a function on the chief, while other hosts wait.

        Args:
            action: The function.

        Returns:
            Its result; other hosts receive it as JSON.
        """
        return action()

    @property
    def is_interrupted(self) -> bool:
        """Whether the process was asked to stop, and must hurry."""
        return False

    def wants_checkpoint(self, directory: PathLike) -> bool:
        """Returns whether a saver should save the current values now.

        Args:
            directory: The directory of the saver's checkpoints.

        Returns:
            Whether they have the best result of `train(validation=...)` so far,
            according to `RunConfig.keep_best`.
        """
        del directory
        return False

    @property
    def last_step(self) -> int | None:
        """The global step to stop at, or `None` if unknown."""
        return None

    def explain_nan(self) -> str:
        """Returns a sentence about the first NaN of the last run.

        Returns:
            In training it names the step of the first NaN loss, and the first
            variable that is not finite; elsewhere it is empty.
        """
        return ""

    def evaluate(
        self,
        estimator: Any,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Iterable[Any] | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates the current values, without a checkpoint.

        Args:
            estimator: The `TPUEstimator` that is training.
            input_fn: As in `TPUEstimator.evaluate`, like the other arguments.
            steps: Batches to evaluate. Defaults to all.
            hooks: Called around every run of the evaluation.
            name: The name of the evaluation. Defaults to `None`.

        Returns:
            What `TPUEstimator.evaluate` returns.

        Raises:
            RuntimeError: The session is not one of `train`.
        """
        raise _only_in_training("evaluate between steps")

    def count_metrics(self) -> "MetricCounts":
        """Returns metrics of training that are counted separately from its log.

        Returns:
            The metrics since this call; none outside of training.
        """
        return NoCounts()

    def validate(self) -> dict[str, Any]:
        """Returns the results of `train(validation=...)` for the current
        values.

        Returns:
            The metrics by name; none outside of training.
        """
        return {}


def _only_in_training(action: str) -> RuntimeError:
    return RuntimeError(
        f"Only hooks of `train` may {action}. Received: a hook of `evaluate` "
        "or `predict`. Pass it to `train(hooks=[...])`, or put it into the "
        "`training_hooks` of the spec."
    )
