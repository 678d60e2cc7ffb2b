"""The shapes of batches, which must be few and equal in all processes.

Each shape of a mode is compiled separately.
"""

import dataclasses
import functools
import logging
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax

from keras_tpu_estimator.base.common.shown import some
from keras_tpu_estimator.engine.inputs.batch import Batch, StackedSteps
from keras_tpu_estimator.engine.inputs.unbatched import is_unbatched, named_leaves

_logger = logging.getLogger("keras_tpu_estimator")

# A larger number of shapes is reported.
_MANY = 8

# The shapes of tensors by name, with "batch" for the size of the batch.
_Shape = tuple[int | str, ...]
_Shapes = dict[str, _Shape]


class InputShapes:
    """The shapes of a mode's batches, over all calls, without the batch axis.

    Args:
        most: The maximum number of shapes, or `None`.

    Example:

    >>> import numpy as np
    >>> from keras_tpu_estimator.engine.inputs.batch import Batch
    >>> from keras_tpu_estimator.engine.inputs.input_shapes import InputShapes
    >>> shapes = InputShapes("train", most=1)
    >>> shapes.note(Batch({"ids": np.zeros((8, 5))}, None), step=0)
    >>> shapes.note(Batch({"ids": np.zeros((4, 5))}, None), step=1)
    >>> shapes.note(Batch({"ids": np.zeros((8, 6))}, None), step=2)
    Traceback (most recent call last):
    ValueError: Batches of mode 'train' must have at most 1 shape, ...
    """

    def __init__(self, mode: str = "", most: int | None = None):
        self._mode = mode
        self._most = most
        self._seen: list[_Shapes] = []
        self._is_reported = False

    def note(self, batch: Batch, step: int) -> None:
        """Counts the shape of a batch.

        Args:
            batch: The batch, with its shared tensors marked.
            step: The number of the batch.

        Raises:
            ValueError: The number of shapes exceeds the maximum.
        """
        leaves = named_leaves(batch.features, batch.labels)
        shapes = {
            name: (
                leaf.value.shape if is_unbatched(leaf) else ("batch", *leaf.shape[1:])
            )
            for name, leaf in leaves
        }
        if shapes in self._seen:
            return
        if self._most is not None and len(self._seen) >= self._most:
            raise ValueError(
                f"Batches of mode {self._mode!r} must have at most "
                f"{self._most} shape{'' if self._most == 1 else 's'}, which "
                "RunConfig.max_input_shapes sets. Received another one at step "
                f"{step}: {self._changes([*self._seen, shapes])}. Pad to fewer "
                "lengths in input_fn, or set a larger number."
            )
        self._seen.append(shapes)
        if len(self._seen) > _MANY and not self._is_reported:
            self._is_reported = True
            _logger.warning(
                "The batches of mode %r have come in %d shapes: %s. Each shape "
                "takes the time and the memory of one more compilation. Pad to "
                "fewer lengths in input_fn, with "
                "Dataset.bucket_by_sequence_length(..., "
                "pad_to_bucket_boundary=True) or with the padded_shapes of "
                "padded_batch. RunConfig(max_input_shapes=...) sets a limit.",
                self._mode,
                len(self._seen),
                self._changes(self._seen),
            )

    def _changes(self, seen: list[_Shapes]) -> str:
        """Returns the shapes of the tensors whose shapes differ, as a text."""
        by_name: dict[str, dict[_Shape, None]] = {}
        for shapes in seen:
            for name, shape in shapes.items():
                by_name.setdefault(name, {})[shape] = None
        return some(
            [
                f"{name} has the shapes {some([_shown(s) for s in own], 4)}"
                for name, own in by_name.items()
                if len(own) > 1
            ],
            separator="; ",
        )


def _shown(shape: _Shape) -> str:
    return f"({', '.join(map(str, shape))})"


_STRUCTURE = "the structure of features and labels"


@dataclasses.dataclass(frozen=True)
class ElementSpec:
    """The structure of a batch, with dtypes and shapes without the batch size.

    Attributes:
        facts: Descriptions by the names of tensors.

    Example:

    >>> import numpy as np
    >>> from keras_tpu_estimator.engine.inputs.batch import StackedSteps
    >>> from keras_tpu_estimator.engine.inputs.input_shapes import ElementSpec
    >>> stacked = StackedSteps({"ids": np.zeros((4, 8, 5), "int32")}, None)
    >>> ElementSpec.of(stacked).facts["features['ids']"]
    'int32 of shape (batch, 5)'
    """

    facts: Mapping[str, str]

    @classmethod
    def of(cls, stacked: StackedSteps) -> Self:
        """Returns the spec of stacked steps."""
        leaves = named_leaves(stacked.features, stacked.labels)
        facts = {name: _described(leaf) for name, leaf in leaves}
        structure = jax.tree.structure((stacked.features, stacked.labels))
        return cls(facts | {_STRUCTURE: str(structure)})

    @functools.cached_property
    def digest(self) -> int:
        """A checksum that is equal for equal specs in all processes."""
        return zlib.crc32(repr(sorted(self.facts.items())).encode())


def mismatch_error(facts: Sequence[Mapping[str, str] | None]) -> ValueError:
    """Returns the error for batches with different specs on several hosts.

    Args:
        facts: The facts of each host's spec, or `None` for a host without a
            batch.
    """
    names = dict.fromkeys(name for each in facts for name in each or ())
    unlike = [
        name
        for name in names
        if len({each.get(name) for each in facts if each is not None}) > 1
    ]
    # The structure repeats the names.
    named = [name for name in unlike if name != _STRUCTURE] or unlike
    received = some(
        [
            f"For {name}, "
            + "; ".join(
                f"host {host} has {each.get(name, 'nothing')}"
                for host, each in enumerate(facts)
                if each is not None
            )
            for name in named
        ],
        separator=". ",
    )
    return ValueError(
        "Batches on all hosts must have the same structure, dtypes and shapes, "
        f"except for the batch size. Received different ones. {received}. Return "
        "the same from input_fn on each host, for instance by padding tensors to "
        "one shape."
    )


def _described(leaf: Any) -> str:
    value = leaf.value if is_unbatched(leaf) else leaf
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    first = ("core",) if is_unbatched(leaf) else ("batch",)
    return f"{dtype} of shape ({', '.join(map(str, first + value.shape[2:]))})"
