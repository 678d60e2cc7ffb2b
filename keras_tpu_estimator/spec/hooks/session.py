"""What user code may ask of a loop: values by name, and more in training."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import Protocol
from typing import TypeVar

import numpy as np

from keras_tpu_estimator.ground.base.types import InputFn
from keras_tpu_estimator.ground.base.types import PathLike
from keras_tpu_estimator.spec.hooks.fetches import check_names
from keras_tpu_estimator.spec.hooks.fetches import values_of

T = TypeVar("T")


class MetricCounts(Protocol):
    """Metrics that are counted from one `reset` to the next."""

    def result(self) -> dict[str, Any]:
        """The metrics by name, of all steps of the runs that have ended."""

    def counts(self) -> dict[str, Any]:
        """Returns the counts of those steps, for `resume`."""

    def resume(self, counts: Mapping[str, Any]) -> None:
        """Continues from counts, before the first step."""

    def reset(self) -> None:
        """Forgets what was counted."""


class NoCounts:
    """The counts of a run without metrics."""

    def result(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def counts(self) -> dict[str, Any]:
        """Returns nothing."""
        return {}

    def resume(self, counts: Mapping[str, Any]) -> None:
        """Does nothing, as nothing is counted."""

    def reset(self) -> None:
        """Does nothing, as nothing was counted."""


class Session:
    """What a hook may ask of a run: names and their current values.

    Args:
        fetch: Returns the value of a name: `"global_step"`, `"loss"`, the path
            of a variable, or what a tensor is called that was asked for.
        live: The Keras model where the loop is, for callbacks. Defaults to
            `None`.
        wait: Waits for the last run. By default there is nothing to wait for.
        graph: What hooks of TensorFlow use. Defaults to `None`.
    """

    def __init__(
        self,
        fetch: Callable[[str], Any],
        live: Any = None,
        wait: Callable[[], object] | None = None,
        graph: Any = None,
    ):
        self._fetch = fetch
        self.live = live
        self._wait = wait
        self.graph = graph

    def run(self, fetches: Any) -> Any:
        """The current values of a name, or of a nest of names.

        Args:
            fetches: `"global_step"`, `"loss"`, a variable's path, what
                `before_run` asked for of predictions' keys and the names of
                `kte.identity`, or a list, tuple or dict of these. A name may
                end with `":0"`.

        Returns:
            NumPy values in the same nest.

        Raises:
            KeyError: There is nothing of that name, or it was not asked for.
            TypeError: It is no name.

        Example:

        >>> from keras_tpu_estimator.spec.hooks.session import Session
        >>> session = Session({"loss": 0.5, "global_step": 3}.__getitem__)
        >>> session.run({"loss": "loss", "rest": ["global_step:0"]})
        {'loss': array(0.5), 'rest': [array(3)]}
        """
        check_names("fetches", fetches)
        return values_of(fetches, lambda name: np.asarray(self._fetch(name)))

    def wait(self) -> None:
        """Waits until the devices have made the last run."""
        if self._wait is not None:
            self._wait()

    def seconds_since_run(self) -> float:
        """Waits for the last run; returns how long ago it was complete."""
        self.wait()
        return 0.0

    def saved_step(self, directory: PathLike) -> int | None:
        """The step of this session's last checkpoint in a directory.

        Args:
            directory: Where checkpoints are.

        Returns:
            The step of the one that was written last, or that the session
            started from; `None` if there is neither.

        Raises:
            RuntimeError: This is no session of `train`.
            Exception: One that was written in the meantime could not be.
        """
        raise _only_in_training("save checkpoints")

    def save_checkpoint(
        self,
        directory: PathLike,
        basename: str = "model.ckpt",
        wait: bool = True,
    ) -> None:
        """Writes the current values into a checkpoint.

        Args:
            directory: Where it is written.
            basename: What its name begins with. Defaults to `'model.ckpt'`.
            wait: Whether to return only when it is on the disk. Otherwise it
                is written while training goes on; the next one waits for it,
                as does the end of training. An error is raised there, or from
                `saved_step`. Defaults to `True`.

        Raises:
            RuntimeError: This is no session of `train`.
        """
        raise _only_in_training("save checkpoints")

    def is_so_anywhere(self, is_so: bool) -> bool:
        """Whether something is so on any host; all hosts ask at once.

        Args:
            is_so: Whether it is so here.
        """
        return is_so

    def is_due_anywhere(self, name: str, is_due: bool) -> bool:
        """Whether something is due on any host, by the clock of that host.

        Several hosts agree on it at the end of a run, so that it happens on
        all of them after the next one.

        Args:
            name: What is due, by the same name on all hosts.
            is_due: Whether it is due here.
        """
        del name
        return is_due

    def by_chief(self, action: Callable[[], T]) -> T:
        """Does something on the chief alone, for which other hosts wait.

        Args:
            action: What to do.

        Returns:
            What it returned; on other hosts, what JSON can tell of that.
        """
        return action()

    @property
    def is_interrupted(self) -> bool:
        """Whether the process was asked to stop, so that it should hurry."""
        return False

    @property
    def last_step(self) -> int | None:
        """The global step to stop at, or `None` if that is open."""
        return None

    def whence_nan(self) -> str:
        """What is known of the first NaN of the last run, as a sentence.

        Returns:
            In training the step of the first loss that is NaN, and the first
            variable that is not finite; elsewhere nothing.
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
            input_fn: As in `TPUEstimator.evaluate`, as are all others.
            steps: Batches to evaluate. Defaults to all.
            hooks: Called around every run of the evaluation.
            name: The name of the evaluation. Defaults to `None`.

        Returns:
            What `TPUEstimator.evaluate` returns.

        Raises:
            RuntimeError: This is no session of `train`.
        """
        raise _only_in_training("evaluate between steps")

    def count_metrics(self) -> "MetricCounts":
        """Counts the metrics of training apart from its reports.

        Returns:
            What was counted since this call; nothing elsewhere.
        """
        return NoCounts()

    def validate(self) -> dict[str, Any]:
        """What `train(validation=...)` gives for the current values.

        Returns:
            The metrics by name; nothing elsewhere.
        """
        return {}


def _only_in_training(action: str) -> RuntimeError:
    return RuntimeError(
        f"Only hooks of `train` may {action}. Received: a hook of `evaluate` "
        "or `predict`. Pass it to `train(hooks=[...])`, or put it into the "
        "`training_hooks` of the spec."
    )
