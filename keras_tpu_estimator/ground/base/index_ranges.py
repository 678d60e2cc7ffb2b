"""Parts of arrays: a range of each dimension."""

import dataclasses
import math
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Self


@dataclasses.dataclass(frozen=True, order=True)
class IndexRanges:
    """A part of an array.

    Attributes:
        start: Where it begins, by dimension.
        stop: Where it ends.

    Example:

    >>> str(IndexRanges((0, 4), (2, 8)))
    '[0:2, 4:8]'
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Self:
        """All of an array of a shape."""
        return cls((0,) * len(shape), tuple(shape))

    @classmethod
    def of(cls, index: Sequence[slice], shape: Sequence[int]) -> Self:
        """What slices of step 1 select.

        Args:
            index: One for each dimension.
            shape: That of the array.
        """
        ranges = [
            part.indices(size) for part, size in zip(index, shape, strict=True)
        ]
        return cls(
            tuple(start for start, _, _ in ranges),
            tuple(stop for _, stop, _ in ranges),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Its size, by dimension."""
        return tuple(
            max(0, stop - start)
            for start, stop in zip(self.start, self.stop, strict=True)
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in it."""
        return 0 in self.shape

    def within(self, other: Self) -> Self:
        """What of it is in another one, too."""
        return type(self)(
            tuple(map(max, self.start, other.start)),
            tuple(map(min, self.stop, other.stop)),
        )

    def seen_from(self, other: Self) -> Self:
        """The same, counted from where another one begins."""
        return type(self)(
            tuple(a - b for a, b in zip(self.start, other.start, strict=True)),
            tuple(a - b for a, b in zip(self.stop, other.start, strict=True)),
        )

    @property
    def slices(self) -> tuple[slice, ...]:
        """What selects it."""
        return tuple(map(slice, self.start, self.stop))

    def __str__(self) -> str:
        ranges = zip(self.start, self.stop, strict=True)
        return f"[{', '.join(f'{start}:{stop}' for start, stop in ranges)}]"


def boxes_of_run(
    start: int, stop: int, shape: Sequence[int]
) -> Iterator[tuple[int, IndexRanges]]:
    """Cuts elements that lie one after the other into boxes.

    Args:
        start: The number of the first element, in the order of C.
        stop: The number after that of the last one.
        shape: That of the array, of one dimension or more.

    Yields:
        Boxes, and the numbers of their first elements. The elements of each
        lie one after the other, too.

    Example:

    >>> [(at, str(box)) for at, box in boxes_of_run(2, 11, (4, 3))]
    [(2, '[0:1, 2:3]'), (3, '[1:3, 0:3]'), (9, '[3:4, 0:2]')]
    """
    row = math.prod(shape[1:])
    if len(shape) == 1:
        yield start, IndexRanges((start,), (stop,))
        return
    first, last = -(-start // row), stop // row
    if first > last:
        yield from _of_row(last, start, stop, shape)
        return
    if start < first * row:
        yield from _of_row(first - 1, start, first * row, shape)
    if first < last:
        whole = IndexRanges.whole(shape[1:])
        yield (
            first * row,
            IndexRanges((first, *whole.start), (last, *whole.stop)),
        )
    if last * row < stop:
        yield from _of_row(last, last * row, stop, shape)


def _of_row(
    number: int, start: int, stop: int, shape: Sequence[int]
) -> Iterator[tuple[int, IndexRanges]]:
    before = number * math.prod(shape[1:])
    for at, box in boxes_of_run(start - before, stop - before, shape[1:]):
        yield (
            before + at,
            IndexRanges((number, *box.start), (number + 1, *box.stop)),
        )
