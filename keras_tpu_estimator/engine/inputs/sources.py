"""Taking any number of steps out of pieces of any length."""

import contextlib
from collections.abc import Iterator

from keras_tpu_estimator.engine.inputs.batch import Batch
from keras_tpu_estimator.engine.inputs.stacking import Buffers
from keras_tpu_estimator.engine.inputs.stacking import Stack
from keras_tpu_estimator.engine.inputs.stacking import is_ready

# Copying so few large steps takes longer than running a program for each.
_FEW = 8


class Source:
    """Takes as many steps at once as are wanted.

    Args:
        pieces: Yields steps, stacked in any number. Those that may not stay
            are read before the next ones are asked for.
        max_bytes: How much is taken at once, unless a single step is larger.
    """

    def __init__(self, pieces: Iterator[Batch], max_bytes: float):
        self._pieces = pieces
        self._max_bytes = max_bytes
        self._rest: Batch | None = None
        self._buffers = Buffers()

    def take(self, steps: int) -> Batch | None:
        """Up to so many steps of equal shapes; `None` at the end.

        Nothing changes them, and they lie as a CPU's programs take them.
        """
        piece = self._next()
        if piece is None:
            return None
        steps = even_share(steps, piece.step_bytes, self._max_bytes)
        piece = self._at_most(steps, piece)
        size = piece.examples
        if is_ready(piece):
            if piece.steps < steps:
                self._rest = self._next()
            if (
                piece.steps == steps
                or self._rest is None
                or self._rest.examples != size
            ):
                return piece
        stack = Stack(self._buffers, piece, steps)
        while piece is not None and piece.examples == size:
            stack.add(piece)
            missing = steps - stack.steps
            if not missing:
                return stack.batch()
            piece = self._next()
            if piece is not None and piece.examples == size:
                piece = self._at_most(missing, piece)
        self._rest = piece
        return stack.batch()

    def skip(self, steps: int) -> int:
        """Passes over steps; how many there were, up to so many."""
        left = steps
        while left and (piece := self._next()) is not None:
            if piece.steps > left:
                piece, self._rest = piece.split(left)
            left -= piece.steps
        return steps - left

    def close(self) -> None:
        """Closes the user's generators, unless a thread is inside them."""
        if hasattr(self._pieces, "close"):
            with contextlib.suppress(ValueError):
                self._pieces.close()
        self._pieces, self._rest = iter(()), None

    def _at_most(self, steps: int, piece: Batch) -> Batch:
        """The first steps of a piece; the others come next."""
        if piece.steps > steps:
            piece, self._rest = piece.split(steps)
        return piece

    def _next(self) -> Batch | None:
        if self._rest is not None:
            piece, self._rest = self._rest, None
            return piece
        return next(self._pieces, None)


def even_share(steps: int, step_bytes: int, max_bytes: float) -> int:
    """How many of some steps to take now, so that all takes are equal.

    Equal numbers need one compiled program only, and no pieces are cut. Where
    there are none, the numbers are about equal. Large steps come one by one,
    where they are.

    Example:

    >>> even_share(100, step_bytes=4, max_bytes=150)
    25
    >>> even_share(100, step_bytes=40, max_bytes=150)
    1
    """
    fitting = max_bytes / max(step_bytes, 1)
    if fitting < _FEW:
        return 1
    most = int(min(fitting, steps))
    times = -(-steps // most)
    few_more = range(times, times + times // 3 + 1)
    equal = (t for t in few_more if steps % t == 0)
    return -(-steps // next(equal, times))
