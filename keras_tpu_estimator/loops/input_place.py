"""The position in the input, saved beside each checkpoint of a `train`."""

import logging
import os
from collections.abc import Callable

from keras_tpu_estimator.checkpoints import location
from keras_tpu_estimator.hooks.session import Session
from keras_tpu_estimator.hooks.session_run_hook import LoopHook
from keras_tpu_estimator.inputs import position_files
from keras_tpu_estimator.inputs.position import Position
from keras_tpu_estimator.storage import paths

_logger = logging.getLogger("keras_tpu_estimator")

# As many checkpoints may be on their way to the disk.
_MAY_BE_PENDING = 4


class InputPlace(LoopHook):
    """Saves positions as long as the call may be resumed.

    A call that has come to its own end leaves none behind, so that the next
    one reads its input from the beginning.

    Args:
        position: Returns the position after so many steps of this call.
            `None` saves none.
        is_interrupted: Whether a clean end is not the call's own.
    """

    def __init__(
        self,
        position: Callable[[int], Position] | None,
        is_interrupted: Callable[[], bool],
    ):
        self._position = position
        self._is_interrupted = is_interrupted
        self._first_step = 0
        self._is_over = False
        self._saved: list[tuple[int, str]] = []

    def start(self, step: int) -> None:
        """Tells the global step before the first step of this call."""
        self._first_step = step
        _logger.info("Training starts from step %d.", step)

    def no_step(self, checkpoint: str | None) -> None:
        """Tells that there is no first step.

        Args:
            checkpoint: The one that training would have started from.
        """
        if self._is_interrupted():
            return
        _logger.warning(
            "Training made no step: the input is empty, or the rest of it is "
            "if an earlier call was interrupted. The next call reads it from "
            "the beginning."
        )
        if checkpoint is not None:
            position_files.remove(checkpoint)

    def save(
        self, directory: str | os.PathLike, basename: str, step: int
    ) -> None:
        """Saves the position for a checkpoint that is written next.

        Args:
            directory: Where the checkpoint will be.
            basename: What its name begins with.
            step: The global step.
        """
        directory = os.fsdecode(directory)
        prefix = os.path.join(directory, location.name_for(step, basename))
        paths.make_directory(directory)
        if self._position is None or self._is_over:
            position_files.remove(prefix)
        else:
            position = self._position(step - self._first_step)
            position_files.write(prefix, position)
            self._saved = [*self._saved[1 - _MAY_BE_PENDING :], (step, prefix)]
        position_files.prune(directory, [p for _, p in self._saved])

    def close(self, session: Session) -> None:
        """Removes what has been saved for the last step, at the call's end."""
        if self._is_interrupted():
            return
        self._is_over = True
        last = int(session.run("global_step"))
        for step, prefix in self._saved:
            if step == last:
                position_files.remove(prefix)
