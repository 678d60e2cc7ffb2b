"""Rectangular parts of arrays: a range of indices in each dimension."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Self


@dataclasses.dataclass(frozen=True, order=True)
class IndexRanges:
    """A rectangular part of an array: the first and the end index, by dimension.

    >>> str(IndexRanges((0, 4), (2, 8)))
    '[0:2, 4:8]'
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @classmethod
    def from_shape(cls, shape: Sequence[int]) -> Self:
        """Returns the ranges of a complete array."""
        return cls((0,) * len(shape), tuple(shape))

    @classmethod
    def from_slices(cls, index: Sequence[slice], shape: Sequence[int]) -> Self:
        """Returns the ranges that slices of step 1 select in an array of this shape."""
        ranges = [part.indices(size) for part, size in zip(index, shape, strict=True)]
        return cls(
            tuple(start for start, _, _ in ranges),
            tuple(stop for _, stop, _ in ranges),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The size, by dimension."""
        return tuple(
            max(0, stop - start)
            for start, stop in zip(self.start, self.stop, strict=True)
        )

    @property
    def is_empty(self) -> bool:
        """Whether it contains no element."""
        return 0 in self.shape

    def within(self, other: Self) -> Self:
        """Returns the intersection with another part."""
        return type(self)(
            tuple(map(max, self.start, other.start)),
            tuple(map(min, self.stop, other.stop)),
        )

    def seen_from(self, other: Self) -> Self:
        """Returns the same part, relative to the start of another one."""
        return type(self)(
            tuple(a - b for a, b in zip(self.start, other.start, strict=True)),
            tuple(a - b for a, b in zip(self.stop, other.start, strict=True)),
        )

    @property
    def slices(self) -> tuple[slice, ...]:
        """The slices that select it."""
        return tuple(map(slice, self.start, self.stop))

    def __str__(self) -> str:
        ranges = zip(self.start, self.stop, strict=True)
        return f"[{', '.join(f'{start}:{stop}' for start, stop in ranges)}]"


def boxes_of_run(
    start: int, stop: int, shape: Sequence[int]
) -> Iterator[tuple[int, IndexRanges]]:
    """Splits consecutive elements of an array, in row-major order, into boxes.

    The array has at least one dimension. Yields the number of a box's first element,
    and the box, whose elements are also consecutive.

    >>> [(at, str(box)) for at, box in boxes_of_run(2, 11, (4, 3))]
    [(2, '[0:1, 2:3]'), (3, '[1:3, 0:3]'), (9, '[3:4, 0:2]')]
    """
    row = math.prod(shape[1:])
    if len(shape) == 1:
        yield start, IndexRanges((start,), (stop,))
        return
    # The end of one row, complete rows, and the start of another one, if they exist.
    first, last = -(-start // row), stop // row
    if first > last:
        yield from _of_row(last, start, stop, shape)
        return
    if start < first * row:
        yield from _of_row(first - 1, start, first * row, shape)
    if first < last:
        row_box = IndexRanges.from_shape(shape[1:])
        yield (
            first * row,
            IndexRanges((first, *row_box.start), (last, *row_box.stop)),
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
