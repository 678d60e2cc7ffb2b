"""What the evaluations so far say about going on with training."""

import dataclasses
import glob
import logging
import os
from collections.abc import Callable
from collections.abc import Iterator

from keras_tpu_estimator.files.summary.event_reader import read_scalars
from keras_tpu_estimator.ground.base.types import PathLike
from keras_tpu_estimator.ground.storage import paths

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
        numbers. What was written last counts.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> with kte.summary.EventWriter(tempfile.mkdtemp()) as writer:
    ...     writer.metrics({"loss": 0.25}, step=20)
    >>> kte.experimental.read_eval_metrics(writer.logdir)
    {20: {'loss': 0.25}}
    """
    pattern = os.path.join(glob.escape(os.fsdecode(eval_dir)), "*.tfevents.*")
    # Their names have the time at which they were begun.
    return read_scalars(paths.matching(pattern))


@dataclasses.dataclass(frozen=True)
class History:
    """One metric over the evaluations so far.

    Attributes:
        eval_dir: Where evaluations are written to.
        metric_name: The metric's name.
        min_steps: Evaluations before this global step are left out.
    """

    eval_dir: PathLike
    metric_name: str
    min_steps: int

    def values(self) -> Iterator[tuple[int, float]]:
        """Reads the metric anew.

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
                    f"The evaluation of step {step} in {self.eval_dir!r} "
                    f"should have {self.metric_name!r}. It has "
                    f"{sorted(metrics)}. Pass one of these as `metric_name`, "
                    "or the `eval_dir` of another evaluation."
                )
            yield step, metrics[self.metric_name]


@dataclasses.dataclass(frozen=True)
class Exceeds:
    """Whether one evaluation was beyond a threshold."""

    history: History
    is_beyond: Compare
    threshold: float

    def __call__(self) -> bool:
        """Looks at all of them."""
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
    """Whether too many steps passed after an evaluation without a better one.

    Attributes:
        is_better: Compares a value with the best one before it.
        max_steps: How many steps may pass.
    """

    history: History
    is_better: Compare
    max_steps: int

    def __call__(self) -> bool:
        """Looks at all of them."""
        best: tuple[int, float] | None = None
        for step, value in self.history.values():
            if best is None or self.is_better(value, best[1]):
                best = step, value
            if step - best[0] >= self.max_steps:
                _logger.info(
                    "%r was best at step %d, with %s, and not better up to "
                    "step %d.",
                    self.history.metric_name,
                    *best,
                    step,
                )
                return True
        return False
