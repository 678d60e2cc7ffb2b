"""What resumes a `train`, saved beside each of its checkpoints.

It is the position in the input, and the state of callbacks and hooks.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator

from keras_tpu_estimator.engine.device.run_state import RunState, Version
from keras_tpu_estimator.engine.inputs import position_files
from keras_tpu_estimator.engine.inputs.packing import Packed
from keras_tpu_estimator.engine.inputs.position import Position
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.ground.hosts.agreement import Hosts
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.runs import state_files
from keras_tpu_estimator.spec.hooks.hook_states import HookStates

_logger = logging.getLogger("keras_tpu_estimator")


class PositionSaver:
    """Saves positions and states as long as the call may be resumed.

    A call that has come to its own end leaves none behind, so that the next
    one reads its input from the beginning.

    Args:
        position: Returns the position after so many steps of this call.
            `None` saves none.
        is_interrupted: Whether a clean end is not the call's own.
        hosts: Each of them saves the position of its own input.

    Attributes:
        states: Those of callbacks and hooks, which process 0 saves; `None`
            before there are any hooks.
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
        self.states: HookStates | None = None
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
        """Saves the current position and states beside a checkpoint.

        Args:
            version: The version of the values in the checkpoint.

        Returns:
            A context in which the checkpoint is to be written, on any thread.
        """
        if version.step != self._last[0]:
            self._last = (version.step, [])
        self._last[1].append(saved.prefix)
        if self._has_ended:
            return contextlib.nullcontext()
        position = None
        if self._position is not None:
            position = self._position(version.runs)
        return self._beside(saved, position, self._packed_states())

    def at_end(self, is_interrupted: bool) -> None:
        """Notes that the last run is made, so that what is saved is the end.

        Args:
            is_interrupted: Whether the call is to be resumed instead.
        """
        self._has_ended = not is_interrupted

    def _packed_states(self) -> Packed | None:
        """Copies the states that this host saves, if there are any."""
        if self.states is None or not self._hosts.is_chief:
            return None
        states = self.states.now()
        has_any = any(state.has_any for state in states)
        return state_files.packed(states) if has_any else None

    @contextlib.contextmanager
    def _beside(
        self, saved: SaveFiles, position: Position | None, states: Packed | None
    ) -> Iterator[None]:
        paths.make_directory(os.path.dirname(saved.prefix))
        # First, for a checkpoint without a position means that there is none.
        if position is not None:
            position_files.write(saved, position, self._hosts)
        if states is not None:
            state_files.write(saved, states)
        yield

    def _forget(self, step: int) -> None:
        """Removes what would resume from this step, the call's end."""
        saved, prefixes = self._last
        if saved == step and not self.is_interrupted():
            for prefix in prefixes:
                self._remove(prefix)

    def _remove(self, prefix: str) -> None:
        # All of them at once, if other hosts have written some.
        if self._hosts.is_chief:
            position_files.remove(prefix)
