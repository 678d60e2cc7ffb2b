"""The types of arrays in XLA's texts, and the memory that they take."""

import dataclasses
import functools
import math
import re

_BITS = {
    "pred": 8,
    "s2": 2,
    "u2": 2,
    "s4": 4,
    "u4": 4,
    "f16": 16,
    "bf16": 16,
    "s16": 16,
    "u16": 16,
    "s32": 32,
    "u32": 32,
    "f32": 32,
    "s64": 64,
    "u64": 64,
    "f64": 64,
    "c64": 64,
    "c128": 128,
}
_WORDS = {"s": "int", "u": "uint", "f": "float", "c": "complex"}
# Those of eight bits have many names, such as f8e4m3fn.
_NARROW = re.compile(r"[suf](8)(?:e\d+m\d+\w*)?|[f](4)e2m1fn")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=?]*)\](?:\{([^{}]*)\})?")


@dataclasses.dataclass(frozen=True)
class ArrayType:
    """An array, and how it lies in a memory.

    Attributes:
        dtype: Its dtype as XLA writes it, such as "bf16".
        shape: Its sizes.
        minor_to_major: Its dimensions, from the one whose elements are next to
            each other. Defaults to the last one first.
        tile: The sizes that its minor dimensions are padded to multiples of.
            Defaults to none.
        space: Which memory it is in. Defaults to 0, a chip's large one.

    Example:

    >>> from keras_tpu_estimator.planning import array_types
    >>> (array,) = array_types.parse("f32[4096,10]{1,0:T(8,128)}")
    >>> array.bytes, array.padded_bytes
    (163840, 2097152)
    """

    dtype: str
    shape: tuple[int, ...]
    minor_to_major: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()
    space: int = 0

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """The bytes of its elements."""
        return -(-self.size * _bits(self.dtype) // 8)

    @property
    def padded_bytes(self) -> int:
        """The bytes that it takes where it lies."""
        order = self.minor_to_major or tuple(reversed(range(len(self.shape))))
        sizes = [self.shape[axis] for axis in reversed(order)] or [1]
        count = min(len(sizes), len(self.tile))
        for axis in range(-count, 0):
            tile = self.tile[axis]
            sizes[axis] = -(-sizes[axis] // tile) * tile
        return -(-math.prod(sizes) * _bits(self.dtype) // 8)


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> tuple[ArrayType, ...]:
    """The arrays of a type: one, or those of a tuple.

    Args:
        text: As XLA writes it, such as "(f32[2,3]{1,0}, s32[])".

    Returns:
        What is no array, such as a token, is left out.

    Example:

    >>> from keras_tpu_estimator.planning import array_types
    >>> [array.shape for array in array_types.parse("(f32[2,3], s32[])")]
    [(2, 3), ()]
    """
    return tuple(
        ArrayType(
            dtype,
            tuple(map(int, re.findall(r"\d+", shape))),
            *_layout(layout),
        )
        for dtype, shape, layout in _ARRAY.findall(text)
        if _bits(dtype)
    )


def dtype_name(dtype: str) -> str:
    """The name that JAX has for a dtype.

    Args:
        dtype: As XLA writes it, such as "s32".

    Example:

    >>> from keras_tpu_estimator.planning import array_types
    >>> array_types.dtype_name("bf16"), array_types.dtype_name("pred")
    ('bfloat16', 'bool')
    """
    if dtype == "pred":
        return "bool"
    return re.sub(
        r"^(b?)(s|u|f|c)(\d+)",
        lambda m: m[1] + _WORDS[m[2]] + m[3],
        dtype,
    )


def _layout(text: str) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    order, _, rest = text.partition(":")
    tile = re.search(r"T\(([\d,]+)\)", rest)
    space = re.search(r"S\((\d+)\)", rest)
    return (
        tuple(int(axis) for axis in order.split(",") if axis),
        tuple(map(int, tile[1].split(","))) if tile else (),
        int(space[1]) if space else 0,
    )


def _bits(dtype: str) -> int:
    """The bits of an element, or 0 of what is no array."""
    narrow = _NARROW.fullmatch(dtype)
    return int(narrow[1] or narrow[2]) if narrow else _BITS.get(dtype, 0)
