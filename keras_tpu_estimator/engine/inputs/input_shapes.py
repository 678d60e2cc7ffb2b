"""The shapes of a mode's batches, each of which is compiled."""

import logging

from keras_tpu_estimator.engine.inputs.batch import Batch
from keras_tpu_estimator.engine.inputs.unbatched import is_unbatched, named_leaves
from keras_tpu_estimator.ground.base.shown import some

_logger = logging.getLogger("keras_tpu_estimator")

# More than this many shapes are reported.
_MANY = 8

# The shapes of tensors by name, with a word for the size of the batch.
_Shape = tuple[int | str, ...]
_Shapes = dict[str, _Shape]


class InputShapes:
    """The shapes of a mode's batches, over all calls, without the batch axis.

    Args:
        mode: A value of `ModeKeys`. Defaults to none.
        most: The number of shapes that are accepted. Defaults to `None`, for
            any number.

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
            step: Its number.

        Raises:
            ValueError: It is one shape too many.
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
        """Describes the sizes of the tensors whose shapes have changed."""
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
