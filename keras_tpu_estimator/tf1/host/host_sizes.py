"""Sizes that depend on values of the input, such as the longest row of a batch.

XLA must know all sizes when it compiles. The host computes these from each batch, and
XLA compiles the step once for each combination of sizes. `tf.sequence_mask(lengths)`
is an example.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.definitions import reachable

# Operations that need the shapes of their inputs only.
OF_SHAPES = ("Shape", "ShapeN", "Size", "Rank")
# The inputs that XLA must know when it compiles.
_SIZES = {
    "BroadcastTo": (1,),
    "Fill": (0,),
    "LinSpace": (2,),
    "MirrorPad": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "PadV2": (1,),
    "RandomStandardNormal": (0,),
    "RandomUniform": (0,),
    "RandomUniformInt": (0,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "ResizeBilinear": (1,),
    "ResizeNearestNeighbor": (1,),
    "ScatterNd": (2,),
    "SplitV": (1,),
    "Tile": (1,),
    "TopKV2": (1,),
    "TruncatedNormal": (0,),
    "UnsortedSegmentMax": (2,),
    "UnsortedSegmentMin": (2,),
    "UnsortedSegmentProd": (2,),
    "UnsortedSegmentSum": (2,),
}
# Sizes of slices. If they are unknown, XLA computes with the full size.
_OF_SLICES = {"Slice": (2,), "StridedSlice": (1, 2)}


class SizeUse(NamedTuple):
    """A size that depends on values: the input `number` of the operation `op`."""

    op: Any
    number: int

    @property
    def tensor(self) -> Any:
        """The tensor of integers."""
        return self.op.inputs[self.number]


def needs_sizes(ops: Sequence[Any]) -> bool:
    """Returns whether XLA must know a size that is no constant."""
    return any(map(_is_unknown, _uses(ops, _SIZES)))


def _is_unknown(use: SizeUse) -> bool:
    return internals.static_value(use.tensor) is None


def _uses(ops: Sequence[Any], table: Mapping[str, Sequence[int]]) -> Iterator[SizeUse]:
    for op in ops:
        for number in table.get(op.type, ()):
            if op.inputs[number].dtype.is_integer:
                yield SizeUse(op, number)


def sizes_of_values(
    ops: Sequence[Any],
    fed: Collection[str],
    free: Collection[str],
    ignored: Collection[str] = (),
) -> list[SizeUse]:
    """Returns the sizes that XLA must know and that depend on values of the input.

    Args:
        fed: The names of the operations that are fed.
        free: The names of the operations that need no variables.
        ignored: The names of operations whose sizes do not matter.
    """
    users = [op for op in ops if op.name not in ignored]
    unknown = [*filter(_is_unknown, _uses(users, _SIZES))]
    if not unknown:
        return []
    varying = set(fed)
    for op in ops:
        if op.type not in OF_SHAPES and any(t.op.name in varying for t in op.inputs):
            varying.add(op.name)
    candidates = varying & set(free)
    sizes = [use for use in unknown if use.tensor.op.name in candidates]
    if sizes:
        # Slices must then have the same sizes as what they are combined with.
        unsized = [
            op
            for op in users
            if op.type in _OF_SLICES and not op.outputs[0].shape.is_fully_defined()
        ]
        slices = filter(_is_unknown, _uses(unsized, _OF_SLICES))
        sizes += [use for use in slices if use.tensor.op.name in candidates]
    return sizes


def without_assertions(graph: Any, fetches: Sequence[Any]) -> list[Any]:
    """Returns the operations of a step, without those that only assertions need."""
    stack, needed = [getattr(fetch, "op", fetch) for fetch in fetches], set[str]()
    while stack:
        op = stack.pop()
        if op.name not in needed and op.type != "Assert":
            needed.add(op.name)
            stack += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return [op for op in reachable(graph, fetches) if op.name in needed]


def as_shape(sizes: np.ndarray) -> np.ndarray:
    """Returns an empty array whose shape contains integers.

    The shapes of a batch decide which step function runs.

    >>> as_shape(np.array([7, -1])).shape
    (0, 14, 1)
    """
    flat = [int(size) for size in np.ravel(sizes)]
    return np.zeros([0, *(2 * n if n >= 0 else -2 * n - 1 for n in flat)], "uint8")


def from_shape(shape: Sequence[int], like: Any) -> np.ndarray:
    """Returns the integers in such a shape, as an array like a tensor."""
    flat = [n // 2 if n % 2 == 0 else -(n + 1) // 2 for n in shape[1:]]
    dims = [-1 if n is None else n for n in like.shape.as_list()]
    return np.reshape(np.asarray(flat, like.dtype.as_numpy_dtype), dims)
