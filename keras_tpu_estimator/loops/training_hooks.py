"""The hooks that accompany every `train`, in the order they are called."""

import functools
import logging
import os
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Self

import keras
import numpy as np

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.checkpoints.location import name_for
from keras_tpu_estimator.checkpoints.writer import Writer
from keras_tpu_estimator.config import validation
from keras_tpu_estimator.config.run_config import RunConfig
from keras_tpu_estimator.device.runtime import Runtime
from keras_tpu_estimator.hooks.callback_hook import callbacks_of
from keras_tpu_estimator.hooks.checkpoint_saver import CheckpointSaverHook
from keras_tpu_estimator.hooks.checkpoint_saver import CheckpointSaverListener
from keras_tpu_estimator.hooks.nan_tensor import NanLossDuringTrainingError
from keras_tpu_estimator.hooks.nan_tensor import NanTensorHook
from keras_tpu_estimator.hooks.recorded_summaries import RecordedSummariesHook
from keras_tpu_estimator.hooks.session_run_hook import Hook
from keras_tpu_estimator.hooks.training_log import TrainingLogHook
from keras_tpu_estimator.loops.position_saver import PositionSaver
from keras_tpu_estimator.loops.progress import Progress
from keras_tpu_estimator.summary import EventWriter

_logger = logging.getLogger("keras_tpu_estimator")


class Saver:
    """Writes a training loop's checkpoints and remembers the last one.

    They are written in the background, one at a time, from copies of the
    values. The end of its `with` block waits for the last one.

    Args:
        config: Where, and how many to keep.
        runtime: Says which values belong into a checkpoint.
        progress: The loop's current values.
        positions: Saves the position in the input beside them.
        checkpoint: The one that the loop starts from, or `None`.
    """

    def __init__(
        self,
        config: RunConfig,
        runtime: Runtime,
        progress: Progress,
        positions: PositionSaver,
        checkpoint: str | None,
    ):
        self._positions = positions
        self._config = config
        self._runtime = runtime
        self._progress = progress
        # Links stay as they are; to follow them after each run takes time.
        self._key = functools.cache(os.path.realpath)
        # The last checkpoint of each directory.
        self._last: dict[str, _Saved] = {}
        self._writer = Writer()
        self._writes_into: str | os.PathLike = config.model_dir
        if checkpoint is not None:
            self._remember(config.model_dir, checkpoint)

    def saved_step(self, directory: str | os.PathLike) -> int | None:
        """The step of the last checkpoint in a directory.

        It is `None` if user code has changed values since.

        Raises:
            Exception: One that was written in the meantime could not be.
        """
        if not self._writer.is_busy:
            self.wait()
        last = self._last.get(self._key(directory))
        if last is None or last.edits != self._progress.edits:
            return None
        return last.step

    def save(self, directory: str | os.PathLike, basename: str) -> None:
        """Begins to write a checkpoint, unless the loss has become NaN.

        Raises:
            NanLossDuringTrainingError: Trained variables of the one before
                were not finite, so that it was not written.
            Exception: It could not be written.
        """
        self.wait()
        step = self._progress.step
        last = self._last.get(self._key(directory))
        is_new = last is not None and step != last.step
        if is_new and np.isnan(self._progress.fetch("loss")):
            return
        _logger.info(
            "Saving checkpoints for %d into %s.",
            step,
            os.path.join(directory, basename),
        )
        values = self._runtime.to_save(self._progress.values)
        trained = sorted(values.keys() & self._runtime.trained_paths())
        prefix = os.path.join(os.fsdecode(directory), name_for(step, basename))
        self._remember(directory, prefix)
        self._writes_into = directory
        beside = self._positions.beside(prefix, step)
        retention = checkpoints.Retention(
            self._config.keep_checkpoint_max,
            self._config.keep_checkpoint_every_n_hours,
        )

        def write() -> None:
            if is_new:
                _check_finite({path: values[path] for path in trained}, step)
            with beside:
                checkpoints.save(
                    directory,
                    step,
                    values,
                    retention=retention,
                    basename=basename,
                )

        self._writer.start(directory, write)

    def wait(self) -> None:
        """Waits until the last checkpoint is on the disk.

        Raises:
            Exception: It could not be written.
        """
        try:
            self._writer.wait()
        except Exception:
            del self._last[self._key(self._writes_into)]
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        try:
            self.wait()
        except Exception:
            if kind is None:
                raise
            _logger.exception("The last checkpoint could not be written.")

    @property
    def current(self) -> str | None:
        """The checkpoint that holds the loop's values, if one does."""
        directory = self._config.model_dir
        is_saved = self.saved_step(directory) == self._progress.step
        if not is_saved or self._writer.is_busy:
            return None
        return self._last[self._key(directory)].prefix

    def _remember(self, directory: str | os.PathLike, prefix: str) -> None:
        saved = _Saved(prefix, self._progress.step, self._progress.edits)
        self._last[self._key(directory)] = saved


def _check_finite(values: Mapping[str, np.ndarray], step: int) -> None:
    """Checks trained values before they are written."""
    for path, value in values.items():
        with np.errstate(all="ignore"):
            # A finite sum, which is quick, has finite terms only.
            if np.isfinite(value.sum()) or np.isfinite(value).all():
                continue
        raise NanLossDuringTrainingError(
            f"The trained variable {path!r} is not finite after step {step}, "
            "though the loss is. Expected numbers. Received NaN or infinity, "
            "so nothing was saved, and the latest checkpoint is one from "
            "before. Lower the learning rate, clip the gradients, or look for "
            "the derivative of a square root or a norm at 0: "
            "RunConfig(debug_nans=True) finds the operation."
        )


class _Saved(NamedTuple):
    """A checkpoint: its prefix, its step, and how often values were edited."""

    prefix: str
    step: int
    edits: int


def is_saving(config: RunConfig) -> bool:
    """Whether a configuration asks for checkpoints."""
    return bool(config.save_checkpoints_steps or config.save_checkpoints_secs)


def training_hooks(
    config: RunConfig,
    progress: Progress,
    listeners: Sequence[CheckpointSaverListener],
    user: Iterable[Hook],
    spec: Iterable[Hook],
    log: TrainingLogHook | None,
) -> list[Hook]:
    """The hooks of one `train`.

    Args:
        config: What is saved, and how often.
        progress: Knows what `model_fn` recorded last.
        listeners: Called around each checkpoint.
        user: What was passed to `train`.
        spec: What `model_fn` returned.
        log: Logs, or `None`.

    Returns:
        All of them, in the order they are called.

    Raises:
        ValueError: There are listeners, and nothing is saved.
    """
    user, spec = tuple(user), tuple(spec)
    hooks: list[Hook] = (
        [] if savers_among((*user, *spec)) else _own_saver(config)
    )
    _attach(listeners, savers_among((*hooks, *user, *spec)))
    if config.save_summary_steps:
        writer = EventWriter.for_dir(config.model_dir)
        hooks.append(
            RecordedSummariesHook(
                writer, config.save_summary_steps, lambda: progress.summaries
            )
        )
    callbacks = callbacks_of([*user, *spec])
    if any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks):
        hooks += [*user, *spec]
    else:
        hooks += [*user, NanTensorHook(), *spec]
    if log is not None:
        hooks.append(log)
    return hooks


def savers_among(hooks: Iterable[Hook]) -> list[CheckpointSaverHook]:
    """The hooks that save checkpoints."""
    return [hook for hook in hooks if isinstance(hook, CheckpointSaverHook)]


def _own_saver(config: RunConfig) -> list[Hook]:
    """What saves as a configuration says, if it asks for checkpoints."""
    if not is_saving(config):
        return []
    return [
        CheckpointSaverHook(
            config.model_dir,
            save_secs=config.save_checkpoints_secs or None,
            save_steps=config.save_checkpoints_steps or None,
        )
    ]


def _attach(
    listeners: Sequence[CheckpointSaverListener],
    savers: Sequence[CheckpointSaverHook],
) -> None:
    """Has the first saver call the listeners."""
    validation.check_listeners(listeners, is_saving=bool(savers))
    for index, saver in enumerate(savers):
        # The others forget those of an earlier call.
        saver.tell_also(() if index else listeners)
