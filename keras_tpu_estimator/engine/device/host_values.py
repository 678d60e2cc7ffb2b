"""The values of variables on the host, as checkpoints and callbacks have them.

A Keras variable has one value at a time, and several calls of one estimator may
run on several threads. Callbacks that read or assign their `model` therefore
take turns: a thread that reads keeps the variables until its callbacks return.
"""

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.base.tracing.variable_classes import stored_value
from keras_tpu_estimator.base.tracing.variables import AnyArraysByPath, ArraysByPath
from keras_tpu_estimator.engine.device.run_state import RunState
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP, VariableStore
from keras_tpu_estimator.files.formats.shards import ShardValues


@dataclasses.dataclass(frozen=True)
class ToSave:
    """The values that this process writes, by path.

    `unsharded` has copies on the host, only on the chief, and `sharded` has values that
    each process writes, which are not copied.
    """

    unsharded: Mapping[str, np.ndarray]
    sharded: Mapping[str, ShardValues]

    @classmethod
    def from_arrays(
        cls,
        store: VariableStore,
        unsharded: Mapping[str, jax.Array],
        sharded: Mapping[str, jax.Array],
    ) -> Self:
        """Returns values in the dtypes and numbers of rows of checkpoints."""
        copies = on_host(unsharded)
        for path in copies.keys() & store.saved_dtypes.keys():
            copies[path] = copies[path].astype(store.saved_dtypes[path])
        for path in copies.keys() & store.rows.keys():
            copies[path] = copies[path][: store.rows[path]]
        shards = {
            path: ShardValues.from_array(
                value, store.saved_dtypes.get(path), store.rows.get(path)
            )
            for path, value in sharded.items()
        }
        return cls(copies, shards)


def on_host(
    values: Mapping[str, jax.Array | np.ndarray],
) -> dict[str, np.ndarray]:
    """Returns copies of values on the host, which training does not donate."""
    fetched = jax.device_get(dict(values))
    return {
        # The CPU returns the buffer itself.
        path: np.array(fetched[path]) if _is_on_cpu(value) else fetched[path]
        for path, value in values.items()
    }


def check_whole(what: str, paths: Collection[str], present: Collection[str]) -> None:
    """Raises an error if this process lacks shards of some variables."""
    parts = sorted(set(paths) - set(present))
    if parts:
        raise ValueError(
            f"{what} must have complete variables on each host. Received "
            f"{len(parts)} sharded over several hosts, such as {parts[0]!r}. "
            "Set RunConfig(checkpoint_format='hdf5'), omit shard_optimizer, "
            "or use fewer cores per replica."
        )


def _is_on_cpu(value: jax.Array | np.ndarray) -> bool:
    if not isinstance(value, jax.Array):
        return True
    return any(device.platform == "cpu" for device in value.devices())


# A callback that takes longer may be in a deadlock.
_PATIENCE_SECS = 60.0

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(eq=False)
class _Block:
    """A `with` block in which callbacks may read variables.

    `has_turn` means that a callback has read them, which makes other threads wait.
    """

    values: RunState
    has_turn: bool = False


class _Blocks(threading.local):
    """The open blocks of this thread, the innermost last."""

    def __init__(self) -> None:
        self.open: list[_Block] = []


class ShownValues:
    """The values of calls, shown to callbacks on one thread at a time.

    `own_copies` returns the arrays of which this process has all shards. `edit`
    receives the values that callbacks have assigned in a call.
    """

    def __init__(
        self,
        store: VariableStore,
        own_copies: Callable[[ArraysByPath], ArraysByPath],
        edit: Callable[[RunState, AnyArraysByPath], None],
    ):
        self._store = store
        self._own_copies = own_copies
        self._edit = edit
        self._mine = _Blocks()
        # The blocks of all threads, guarded by the lock.
        self._open: list[_Block] = []
        self._lock = threading.Lock()
        self._turn = threading.RLock()
        # The call whose values the variables have, and the arrays in them.
        self._shown: RunState | None = None
        self._arrays: ArraysByPath = {}

    @contextlib.contextmanager
    def visible(self, values: RunState) -> Iterator[None]:
        """Shows a call's values as the model's to callbacks in a `with` block.

        The variables get the values when a callback reads its `model`. At the end of
        the block, the call gets the values that the callback assigned. A block in which
        no callback reads them costs nothing. Blocks of several calls may be nested.
        """
        block, mine = _Block(values), self._mine.open
        outer = self._shown if mine else None
        mine.append(block)
        with self._lock:
            self._open.append(block)
            self._store.holder = self
        try:
            yield
        finally:
            self._close(block)
            if mine and mine[-1].values is outer:
                self.show()

    def _close(self, block: _Block) -> None:
        """Ends a block, so that another thread may read the variables."""
        try:
            if self._shown is block.values:
                self._take_back()
        finally:
            self._mine.open.pop()
            with self._lock:
                self._open.remove(block)
                if not self._open:
                    self._store.holder = None
            if block.has_turn:
                self._turn.release()

    def show(self) -> None:
        """Assigns the innermost call's values to the variables, without a copy."""
        if not self._mine.open:
            self._show_to_thread()
            return
        block = self._mine.open[-1]
        if not block.has_turn:
            self._take_turn()
            block.has_turn = True
        self._show_values(block.values)

    def _show_to_thread(self) -> None:
        """Shows values to a thread that a callback has started."""
        # It shares the values of its callback, which may wait for it.
        if self._shown is None and self._open:
            with self._turn:
                self._show_values(self._open[-1].values)

    def _take_turn(self) -> None:
        """Waits until no callback on another thread reads the variables."""
        if self._turn.acquire(timeout=_PATIENCE_SECS):
            return
        _logger.warning(
            "A callback has waited %.0f seconds for a callback of another "
            "call of the same estimator, on another thread, which has read or "
            "assigned its `model` and has not returned. If that callback waits "
            "for this call, use a separate estimator for each of the two calls.",
            _PATIENCE_SECS,
        )
        self._turn.acquire()

    def _show_values(self, values: RunState) -> None:
        if self._shown is values:
            return
        self._take_back()
        self._store.assign(values)
        shown = values.keys() - self._store.on_host
        self._arrays = {path: self._current(path) for path in shown}
        self._shown = values

    def assign(self, values: ArraysByPath) -> None:
        """Assigns permanent values to the variables, when no callback reads them."""
        self._take_turn()
        try:
            shown = self._shown
            self._take_back()
            self._store.assign(values)
            if shown is not None:
                self._show_values(shown)
        finally:
            self._turn.release()

    @contextlib.contextmanager
    def separate_arrays(self, keeps: bool) -> Iterator[None]:
        """Gives the variables separate arrays, because Keras's own loops donate them.

        If `keeps` is set, the call gets the values at the end of the `with` block.
        """
        self.show()
        before = {path: self._current(path) for path in self._arrays}
        # Keras runs on the cores of this process.
        copies = self._own_copies(before)
        check_whole("Keras's own loops", before, copies)
        self._store.assign(jax.tree.map(jnp.copy, copies))
        try:
            yield
        finally:
            if not keeps:
                self._restore(before)

    def _restore(self, before: ArraysByPath) -> None:
        """Assigns the earlier arrays to the variables."""
        self._store.assign(before)
        for path, value in before.items():
            if value is self._arrays[path]:
                self._arrays[path] = self._current(path)

    def _take_back(self) -> None:
        """Moves values that were assigned to the variables into the call."""
        values, arrays = self._shown, self._arrays
        if values is None:
            return
        self._shown, self._arrays = None, {}
        assigned = {
            path: value
            for path, before in arrays.items()
            # Only the loop counts steps.
            if (value := self._current(path)) is not before and path != GLOBAL_STEP
        }
        if not assigned:
            return
        # Copied, because training donates each array, and no two may be one.
        self._edit(values, jax.tree.map(jnp.copy, assigned))

    def _current(self, path: str) -> jax.Array:
        return stored_value(self._store.variables[path])
