"""The position in the input, saved beside each checkpoint of a `train`."""

import contextlib
import logging
import os
from collections.abc import Callable
from collections.abc import Iterator

from keras_tpu_estimator.engine.device.run_state import RunState
from keras_tpu_estimator.engine.device.run_state import Version
from keras_tpu_estimator.engine.inputs import position_files
from keras_tpu_estimator.engine.inputs.position import Position
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.ground.hosts.agreement import Hosts
from keras_tpu_estimator.ground.storage import paths

_logger = logging.getLogger("keras_tpu_estimator")


class PositionSaver:
    """Saves positions as long as the call may be resumed.

    A call that has come to its own end leaves none behind, so that the next
    one reads its input from the beginning.

    Args:
        position: Returns the position after so many steps of this call.
            `None` saves none.
        is_interrupted: Whether a clean end is not the call's own.
        hosts: Each of them saves the position of its own input.
    """

    def __init__(
        self,
        position: Callable[[int], Position] | None,
        is_interrupted: Callable[[], bool],
        hosts: Hosts,
    ):
        self._hosts = hosts
        self._position = position
        self.is_interrupted = is_interrupted
        self._has_ended = False
        # The checkpoints of the last step that was saved.
        self._last: tuple[int, list[str]] = (-1, [])

    @contextlib.contextmanager
    def of_call(self, values: RunState) -> Iterator[None]:
        """Saves those of one call, and forgets the one at its own end.

        Args:
            values: Those of the call, which know the global step.
        """
        _logger.info("Training starts from step %d.", values.step)
        try:
            yield
        finally:
            if self._has_ended:
                self._forget(values.step)

    def no_step(self, checkpoint: str | None) -> None:
        """Tells that there is no first step.

        Args:
            checkpoint: The one that training would have started from.
        """
        if self.is_interrupted():
            return
        _logger.warning(
            "Training made no step: the input is empty, or the rest of it is "
            "if an earlier call was interrupted. The next call reads it from "
            "the beginning."
        )
        if checkpoint is not None:
            self._remove(checkpoint)

    def beside(
        self, saved: SaveFiles, version: Version
    ) -> contextlib.AbstractContextManager[None]:
        """Saves the current position beside a checkpoint.

        Args:
            version: The version of the values in the checkpoint.

        Returns:
            A context in which the checkpoint is to be written, on any thread.
        """
        if version.step != self._last[0]:
            self._last = (version.step, [])
        self._last[1].append(saved.prefix)
        if self._position is None or self._has_ended:
            return contextlib.nullcontext()
        return self._beside(saved, self._position(version.runs))

    def at_end(self) -> None:
        """Tells that the last run is made: what is saved now is the end."""
        self._has_ended = not self.is_interrupted()

    @contextlib.contextmanager
    def _beside(self, saved: SaveFiles, position: Position) -> Iterator[None]:
        paths.make_directory(os.path.dirname(saved.prefix))
        # First, for a checkpoint without a position means that there is none.
        position_files.write(saved, position, self._hosts)
        yield

    def _forget(self, step: int) -> None:
        """Removes what was saved at this step, if that is the call's end."""
        saved, prefixes = self._last
        if saved == step and not self.is_interrupted():
            for prefix in prefixes:
                self._remove(prefix)

    def _remove(self, prefix: str) -> None:
        # All of them at once, if other hosts have written some.
        if self._hosts.is_chief:
            position_files.remove(prefix)
