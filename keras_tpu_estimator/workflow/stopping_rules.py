"""Rules for early stopping, and the metrics of earlier evaluations."""

import dataclasses
import glob
import logging
import os
from collections.abc import Callable, Iterator

from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.files.summary.event_file import read_scalars

Compare = Callable[[float, float], bool]

_logger = logging.getLogger("keras_tpu_estimator")


def read_eval_metrics(
    eval_dir: PathLike,
) -> dict[int, dict[str, float]]:
    """Reads the metrics that evaluations wrote into a directory.

    The counterpart of `tf.estimator.experimental.read_eval_metrics`.

    Args:
        eval_dir: The directory, such as `estimator.eval_dir()`; it need not
            exist.

    Returns:
        A dict by global step, in ascending order, of dicts from names to
        numbers. The last value of a step counts.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> with kte.summary.EventWriter(tempfile.mkdtemp()) as writer:
    ...     writer.metrics({"loss": 0.25}, step=20)
    >>> kte.experimental.read_eval_metrics(writer.logdir)
    {20: {'loss': 0.25}}
    """
    pattern = os.path.join(glob.escape(os.fsdecode(eval_dir)), "*.tfevents.*")
    # Names of event files contain the time of their creation.
    return read_scalars(paths.matching(pattern))


@dataclasses.dataclass(frozen=True)
class History:
    """The values of one metric in all evaluations so far.

    Attributes:
        eval_dir: The directory of the evaluations.
        metric_name: The metric's name.
        min_steps: Evaluations before this global step are ignored.
    """

    eval_dir: PathLike
    metric_name: str
    min_steps: int

    def values(self) -> Iterator[tuple[int, float]]:
        """Reads the metric.

        Yields:
            Global steps, in ascending order, and values.

        Raises:
            KeyError: An evaluation lacks the metric.
        """
        for step, metrics in read_eval_metrics(self.eval_dir).items():
            if step < self.min_steps:
                continue
            if self.metric_name not in metrics:
                raise KeyError(
                    f"The evaluation of step {step} in {self.eval_dir!r} must "
                    f"have {self.metric_name!r}. Received only "
                    f"{sorted(metrics)}. Pass one of these as `metric_name`, "
                    "or the `eval_dir` of another evaluation."
                )
            yield step, metrics[self.metric_name]


@dataclasses.dataclass(frozen=True)
class Exceeds:
    """A rule that is true if an evaluation is beyond a threshold."""

    history: History
    is_beyond: Compare
    threshold: float

    def __call__(self) -> bool:
        """Checks all evaluations."""
        for step, value in self.history.values():
            if self.is_beyond(value, self.threshold):
                _logger.info(
                    "%r was %s at step %d, beyond %s.",
                    self.history.metric_name,
                    value,
                    step,
                    self.threshold,
                )
                return True
        return False


@dataclasses.dataclass(frozen=True)
class Stalls:
    """A rule that is true if too many steps passed since the best evaluation.

    Attributes:
        is_better: Compares a value with the best one before it.
        max_steps: The largest number of steps since the best evaluation.
    """

    history: History
    is_better: Compare
    max_steps: int

    def __call__(self) -> bool:
        """Checks all evaluations."""
        best: tuple[int, float] | None = None
        for step, value in self.history.values():
            if best is None or self.is_better(value, best[1]):
                best = step, value
            if step - best[0] >= self.max_steps:
                _logger.info(
                    "%r was best at step %d, with %s, and not better up to step %d.",
                    self.history.metric_name,
                    *best,
                    step,
                )
                return True
        return False
