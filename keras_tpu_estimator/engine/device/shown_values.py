"""A call's values as those of the Keras variables, while callbacks look.

A Keras variable has one value at a time, and several calls of one estimator may
run on several threads. Callbacks that read or assign their `model` therefore
take turns: a thread that looks keeps the variables until its callbacks return.
"""

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from keras_tpu_estimator.engine.device.run_state import RunState
from keras_tpu_estimator.engine.device.saving import check_whole
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP, VariableStore
from keras_tpu_estimator.ground.tracing.variable_classes import given
from keras_tpu_estimator.ground.tracing.variables import AnyArraysByPath, ArraysByPath

# Callbacks take less, unless two threads wait for each other.
_PATIENCE_SECS = 60.0

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(eq=False)
class _Block:
    """A `with` block in which callbacks may look.

    Attributes:
        values: The values of its call.
        has_turn: Whether a callback has looked, which makes others wait.
    """

    values: RunState
    has_turn: bool = False


class _Blocks(threading.local):
    """The blocks that are open on this thread, the innermost last."""

    def __init__(self) -> None:
        self.open: list[_Block] = []


class ShownValues:
    """Shows the values of calls to callbacks, one thread at a time.

    Args:
        own_copies: Returns the arrays of which this process has all shards.
        edit: Receives the values that callbacks have assigned in a call.
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
        # Those of all threads, which change under the lock.
        self._open: list[_Block] = []
        self._lock = threading.Lock()
        self._turn = threading.RLock()
        # The call whose values the variables have, and these arrays.
        self._shown: RunState | None = None
        self._lent: ArraysByPath = {}

    @contextlib.contextmanager
    def visible(self, values: RunState) -> Iterator[None]:
        """Lets callbacks in a `with` block see a call's values as the model's.

        The variables get them when a callback reads its `model`. At the end of
        the block, what it has assigned to them is the call's. A block in which
        no callback looks costs nothing. Blocks of several calls may be nested.
        """
        block, mine = _Block(values), self._mine.open
        outer = self._shown if mine else None
        mine.append(block)
        with self._lock:
            self._open.append(block)
            self._store.lender = self
        try:
            yield
        finally:
            self._close(block)
            if mine and mine[-1].values is outer:
                self.show()

    def _close(self, block: _Block) -> None:
        """Ends a block, so that another thread may look."""
        try:
            if self._shown is block.values:
                self._take_back()
        finally:
            self._mine.open.pop()
            with self._lock:
                self._open.remove(block)
                if not self._open:
                    self._store.lender = None
            if block.has_turn:
                self._turn.release()

    def show(self) -> None:
        """Gives the variables the innermost call's values, without a copy."""
        if not self._mine.open:
            self._show_to_helper()
            return
        block = self._mine.open[-1]
        if not block.has_turn:
            self._take_turn()
            block.has_turn = True
        self._give(block.values)

    def _show_to_helper(self) -> None:
        """Shows values to a thread that a callback has started."""
        # It sees the values that its callback sees, which may wait for it.
        if self._shown is None and self._open:
            with self._turn:
                self._give(self._open[-1].values)

    def _take_turn(self) -> None:
        """Waits until no callback on another thread looks."""
        if self._turn.acquire(timeout=_PATIENCE_SECS):
            return
        _logger.warning(
            "A callback has waited %.0f seconds for a callback of another "
            "call of the same estimator, on another thread, which has read or "
            "assigned its `model` and has not returned. If it waits for this "
            "call, give the two calls estimators of their own.",
            _PATIENCE_SECS,
        )
        self._turn.acquire()

    def _give(self, values: RunState) -> None:
        if self._shown is values:
            return
        self._take_back()
        self._store.assign(values)
        self._lent = {path: self._current(path) for path in values}
        self._shown = values

    def assign(self, values: ArraysByPath) -> None:
        """Gives the variables values that stay, when no callback looks."""
        self._take_turn()
        try:
            shown = self._shown
            self._take_back()
            self._store.assign(values)
            if shown is not None:
                self._give(shown)
        finally:
            self._turn.release()

    @contextlib.contextmanager
    def apart(self, keeps: bool) -> Iterator[None]:
        """Gives the variables separate arrays in a `with` block.

        For Keras's own loops, which use up the arrays that variables have.

        Args:
            keeps: Whether what becomes of them is the call's afterwards.
        """
        self.show()
        before = {path: self._current(path) for path in self._lent}
        # Keras knows nothing of other hosts.
        own = self._own_copies(before)
        check_whole("Keras's own loops", before, own)
        self._store.assign(jax.tree.map(jnp.copy, own))
        try:
            yield
        finally:
            if not keeps:
                self._give_again(before)

    def _give_again(self, before: ArraysByPath) -> None:
        """Gives the variables the arrays that they had."""
        self._store.assign(before)
        for path, value in before.items():
            if value is self._lent[path]:
                self._lent[path] = self._current(path)

    def _take_back(self) -> None:
        """Puts what was assigned to the variables into the call."""
        values, lent = self._shown, self._lent
        if values is None:
            return
        self._shown, self._lent = None, {}
        assigned = {
            path: value
            for path, before in lent.items()
            # Only the loop counts steps.
            if (value := self._current(path)) is not before and path != GLOBAL_STEP
        }
        if not assigned:
            return
        # Copied, because training donates each array, and no two may be one.
        self._edit(values, jax.tree.map(jnp.copy, assigned))

    def _current(self, path: str) -> jax.Array:
        return given(self._store.variables[path])
