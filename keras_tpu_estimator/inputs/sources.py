"""Taking any number of steps out of pieces of any length."""

import contextlib
from collections.abc import Iterator

from keras_tpu_estimator.inputs.batch import Batch


class Source:
    """Takes as many steps at once as are wanted.

    Args:
        pieces: Yields steps, stacked in any number.
        max_bytes: How much is taken at once, unless a single step is larger.
    """

    def __init__(self, pieces: Iterator[Batch], max_bytes: float):
        self._pieces = pieces
        self._max_bytes = max_bytes
        self._rest: Batch | None = None

    def take(self, steps: int) -> Batch | None:
        """Up to so many steps of equal shapes; `None` at the end."""
        piece = self._next()
        if piece is None:
            return None
        taken: list[Batch] = []
        missing = even_share(steps, piece.step_bytes, self._max_bytes)
        size = piece.examples
        while piece is not None and piece.examples == size:
            if piece.steps > missing:
                piece, self._rest = piece.split(missing)
            taken.append(piece)
            missing -= piece.steps
            if not missing:
                return Batch.joined(taken)
            piece = self._next()
        self._rest = piece
        return Batch.joined(taken)

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

    def _next(self) -> Batch | None:
        if self._rest is not None:
            piece, self._rest = self._rest, None
            return piece
        return next(self._pieces, None)


def even_share(steps: int, step_bytes: int, max_bytes: float) -> int:
    """How many of some steps to take now, so that all takes are equal.

    Equal numbers need one compiled program only, and no pieces are cut. Where
    there are none, the numbers are about equal.

    Example:

    >>> even_share(100, step_bytes=4, max_bytes=150)
    25
    """
    most = max(1, int(min(max_bytes / max(step_bytes, 1), steps)))
    times = -(-steps // most)
    few_more = range(times, times + times // 3 + 1)
    equal = (t for t in few_more if steps % t == 0)
    return -(-steps // next(equal, times))
