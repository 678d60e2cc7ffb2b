"""The files beside checkpoints with which a later `train` resumes.

They contain the position in the input, and the state of callbacks and hooks.
'model.ckpt-20.callbacks.0f0f0f0f.zip' belongs to the 'model.ckpt-20.h5' of the same
save, and is written before it. With several hosts, each writes one:
'model.ckpt-20.callbacks-1-of-4...'. A checkpoint without such a file ends a call of
`train`, comes from another program, or has no such state.
"""

import contextlib
import dataclasses
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Self

from keras_tpu_estimator.api.hooks.hook_list import HookList
from keras_tpu_estimator.api.hooks.hook_states import HookStates, SavedState
from keras_tpu_estimator.base.common.ledger import restoring
from keras_tpu_estimator.base.hosts.agreement import Hosts
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.parsing import parsing
from keras_tpu_estimator.engine.device.run_state import RunState, Version
from keras_tpu_estimator.engine.inputs.packing import (
    Packed,
    pack,
    read_archive,
    unpack,
    write_archive,
)
from keras_tpu_estimator.engine.inputs.position import Position, write_position
from keras_tpu_estimator.files.directory.save_files import ResumeFiles, SaveFiles
from keras_tpu_estimator.files.formats.loading import step_of

_RECORD = "callbacks.json"
_OF_FIRST = r"\.callbacks(-0-of-\d+)?\.[^/\\]+$"
_ALONE = Hosts()
_logger = logging.getLogger("keras_tpu_estimator")


def pack_states(states: Iterable[SavedState]) -> Packed:
    """Copies states, so that training may continue before they are written."""
    parts = [_packed(state) for state in states]
    texts = json.dumps([(part.text, len(part.blobs)) for part in parts])
    return Packed(texts, tuple(blob for part in parts for blob in part.blobs))


def write_states(saved: SaveFiles, states: Packed, hosts: Hosts = _ALONE) -> None:
    """Writes this host's states of a checkpoint atomically."""
    write_archive(
        saved.callbacks(hosts.index, hosts.count),
        saved.token,
        _RECORD,
        {"states": states.text},
        states.blobs,
    )


@restoring
def read_states(
    files: ResumeFiles | None, hosts: Hosts = _ALONE
) -> list[SavedState] | None:
    """Reads the states beside a checkpoint, or returns `None` without such files.

    If another number of hosts has written them, each host receives those of host 0.
    Corrupt files raise `ValueError`.
    """
    if files is None or not files.callbacks:
        return None
    written, save = files.callbacks, files.save
    of_hosts = [save.callbacks(host, hosts.count) for host in range(hosts.count)]
    if not set(of_hosts).isdisjoint(written):
        path = of_hosts[hosts.index]
        return _read(path) if path in written else None
    if hosts.is_chief:
        _logger.warning(
            "The callbacks and hooks of all processes resume with the state of process "
            "0, because another number of processes wrote %r. Start as many processes "
            "as before to give each its own state.",
            os.path.basename(written[0]),
        )
    of_first = (path for path in written if re.search(_OF_FIRST, path))
    return _read(next(of_first, written[0]))


@dataclasses.dataclass(frozen=True)
class Start:
    """The checkpoint from which a call of `train` continues, with its step and files.

    Without a checkpoint it is step 0. `files` is `None` if another program wrote the
    checkpoint.
    """

    checkpoint: str | None = None
    step: int = 0
    files: ResumeFiles | None = None

    @classmethod
    @restoring
    def at(cls, checkpoint: str | None) -> Self:
        """Reads the step of a checkpoint, and finds the files beside it."""
        if checkpoint is None:
            return cls()
        return cls(checkpoint, step_of(checkpoint), ResumeFiles.at(checkpoint))

    def states_of(self, hooks: HookList, hosts: Hosts) -> HookStates:
        """Returns the states of all hooks, with those of the checkpoint."""
        return HookStates(
            hooks.hooks,
            read_states(self.files, hosts),
            has_checkpoint=self.checkpoint is not None,
            warns=hosts.is_chief,
        )


def _read(path: str) -> list[SavedState]:
    advice = "Delete it so that they start without a state."
    with parsing(path, "contain the state of callbacks and hooks", advice):
        record, blobs = read_archive(path, _RECORD)
        remaining_blobs, states = iter(blobs), []
        for text, count in json.loads(record["states"]):
            its_own = tuple(itertools.islice(remaining_blobs, count))
            states.append(SavedState(**unpack(Packed(text, its_own))))
        return states


def _packed(state: SavedState) -> Packed:
    # `asdict` would copy large arrays again.
    fields = dataclasses.fields(state)
    try:
        return pack({field.name: getattr(state, field.name) for field in fields})
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"The state of {state.kind} cannot be saved with a checkpoint. {error}"
        ) from error


class PositionSaver:
    """The saver of positions and states while the call may be resumed.

    A call that ends by itself removes them, so that the next call reads its input from
    the beginning. Each process saves the position of its input, unless `position` is
    `None`, and the `states` of its callbacks and hooks, which are `None` before the
    call has hooks.
    """

    def __init__(
        self,
        position: Callable[[int], Position] | None,
        is_interrupted: Callable[[], bool],
        hosts: Hosts,
    ):
        self._hosts = hosts
        self._position = position
        self._is_stopped = is_interrupted
        self.states: HookStates | None = None
        # The answer of all processes, after the last run.
        self._is_interrupted_anywhere: bool | None = None
        # The saves of the last step that was saved.
        self._last: tuple[int, list[SaveFiles]] = (-1, [])

    @contextlib.contextmanager
    def of_call(self, values: RunState) -> Iterator[None]:
        """Saves positions in a `with` block, and removes them at the call's end."""
        _logger.info("Training starts from step %d.", values.step)
        try:
            yield
        finally:
            if self._has_ended:
                self._remove_at_end(values.step)

    def report_no_steps(self, start: Start) -> None:
        """Reports that the input after a checkpoint has no first step."""
        if self.is_interrupted():
            return
        _logger.warning(
            "Training made no step, because the input is empty, or an earlier "
            "interrupted call has read all of it. The next call reads the input "
            "from the beginning."
        )
        if start.files is not None:
            self._remove(start.files.save)

    def beside(
        self, saved: SaveFiles, version: Version
    ) -> contextlib.AbstractContextManager[None]:
        """Saves the current position and states beside a checkpoint.

        The checkpoint must be written in the returned context, on any thread.
        """
        if version.step != self._last[0]:
            self._last = (version.step, [])
        self._last[1].append(saved)
        if self._has_ended:
            return contextlib.nullcontext()
        position = None
        if self._position is not None:
            position = self._position(version.runs)
        return self._beside(saved, position, self._packed_states())

    def at_end(self, is_interrupted: bool) -> None:
        """Records the last run's end, and whether a later call must resume."""
        self._is_interrupted_anywhere = is_interrupted

    def is_interrupted(self) -> bool:
        """Returns whether a later call must resume this one."""
        if self._is_interrupted_anywhere is None:
            return self._is_stopped()
        return self._is_interrupted_anywhere

    @property
    def _has_ended(self) -> bool:
        return self._is_interrupted_anywhere is False

    def _packed_states(self) -> Packed | None:
        """Copies the states that this process saves, if there are any."""
        if self.states is None:
            return None
        states = self.states.now()
        has_any = any(state.has_any for state in states)
        return pack_states(states) if has_any else None

    @contextlib.contextmanager
    def _beside(
        self, saved: SaveFiles, position: Position | None, states: Packed | None
    ) -> Iterator[None]:
        paths.make_directory(os.path.dirname(saved.prefix))
        # The position comes first, because a checkpoint without one ends a call.
        if position is not None:
            write_position(saved, position, self._hosts)
        if states is not None:
            write_states(saved, states, self._hosts)
        yield

    def _remove_at_end(self, step: int) -> None:
        """Removes the files of this step, with which the call ends."""
        saved_step, saves = self._last
        # A signal may have arrived after the last run.
        if saved_step == step and not self._is_stopped():
            for save in saves:
                self._remove(save)

    def _remove(self, save: SaveFiles) -> None:
        # The chief also removes the files of other processes.
        if self._hosts.is_chief:
            save.remove_resume_files()
