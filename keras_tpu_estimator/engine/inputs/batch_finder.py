"""Finding out which tensors have the batch as their first axis."""

import collections
import logging
from collections.abc import Collection

from keras_tpu_estimator.engine.inputs.batch import Batch
from keras_tpu_estimator.ground.base.shown import some

_logger = logging.getLogger("keras_tpu_estimator")
_LABELS = "labels"
# That of a batch of images.
_RANK = 4


class BatchFinder:
    """Finds out which tensors have a batch axis.

    In the first batch those of the size asked for have one; if there are none,
    those of the most common length. In a batch of another size it is those
    among them whose first axes have changed, features among them; not those
    whose first axis has changed as a later axis of others has, which is a
    sequence as long as the first batch. If none of the labels has one, but for
    scalars, they are meant to. Images whose last axis is as long as the labels,
    and no first one, have the batch there. Without a size,
    scalars are one example.

    Args:
        size: The batch size asked for, or `None`.
    """

    def __init__(self, size: int | None):
        self._size = size
        self._first: dict[str, tuple[int, ...]] = {}
        self._batched: set[str] = set()

    def shared_in(self, batch: Batch) -> Collection[str]:
        """The names of the tensors without one."""
        shapes = {name: leaf.shape for name, leaf in batch.leaves}
        batched = self._batched or self._begin(shapes)
        first = self._first or shapes
        labels = {name for name in shapes if name.startswith(_LABELS)}
        changed = {n for n in batched if _lengths(first, shapes, n, slice(1))}
        lengths = {
            pair
            for name in batched - changed
            for pair in _lengths(first, shapes, name, slice(1, None))
        }
        sequences = {
            name
            for name in changed
            if lengths.issuperset(_lengths(first, shapes, name, slice(1)))
        }
        batched, changed = batched - sequences, changed - sequences
        if changed - labels or (changed and batched <= labels):
            batched = changed
        if not labels & batched:
            batched = batched | {name for name in labels if shapes[name]}
        return shapes.keys() - batched

    def _begin(self, shapes: dict[str, tuple[int, ...]]) -> set[str]:
        """The tensors with one in the first batch that is not empty."""
        size = self._size_in(shapes)
        batched = {name for name, shape in shapes.items() if shape[:1] == (size,)}
        if size:
            self._first, self._batched = shapes, batched
            self._tell(size)
        return batched

    def _size_in(self, shapes: dict[str, tuple[int, ...]]) -> int:
        of_labels, of_features = (
            [
                shape[0]
                for name, shape in shapes.items()
                if shape and name.startswith(_LABELS) == are_labels
            ]
            for are_labels in (True, False)
        )
        lengths = of_features + of_labels
        if not lengths and self._size is None:
            return 1
        if not lengths:
            raise ValueError(
                "At least one tensor should have the batch as its first axis. "
                f"Received scalars only: {some(sorted(shapes))}. Repeat one "
                "of them for each example."
            )
        if set(of_labels) == {0} and 0 in of_features:
            return 0
        if self._size in lengths:
            return self._size
        if self._size is None and len(set(of_labels) - set(of_features)) == 1:
            (size,) = set(of_labels) - set(of_features)
            images = [shape for shape in shapes.values() if len(shape) == _RANK]
            if any(shape[-1] == size for shape in images):
                return size
        return collections.Counter(lengths).most_common(1)[0][0]

    def _tell(self, size: int) -> None:
        for name in sorted(self._first.keys() - self._batched):
            _logger.info(
                "%s of shape %s has no batch of %d as its first axis, so it is "
                "given to model_fn whole.",
                name,
                self._first[name],
                size,
            )


def _lengths(
    before: dict[str, tuple[int, ...]],
    now: dict[str, tuple[int, ...]],
    name: str,
    axes: slice,
) -> set[tuple[int, int]]:
    """Returns the lengths of axes that have changed, each before and now."""
    pairs = zip(before[name][axes], now.get(name, ())[axes], strict=False)
    return {pair for pair in pairs if pair[0] != pair[1]}
