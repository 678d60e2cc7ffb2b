"""Finding out which tensors have the batch as their first axis."""

import collections
import logging
from collections.abc import Collection

from keras_tpu_estimator.inputs.batch import Example

_logger = logging.getLogger("keras_tpu_estimator")
_LABELS = "labels"


class BatchFinder:
    """Finds out which tensors have a batch axis.

    In the first batch those of the size asked for have one; if there are none,
    those of the most common length. In a batch of another size it is those
    among them whose shapes have changed, features among them. If none of the
    labels has one, but for scalars, they are meant to.

    Args:
        size: The batch size asked for, or `None`.
    """

    def __init__(self, size: int | None):
        self._size = size
        self._first: dict[str, tuple[int, ...]] = {}
        self._batched: set[str] = set()

    def shared_in(self, example: Example) -> Collection[str]:
        """The names of the tensors without one."""
        shapes = {name: leaf.shape for name, leaf in example.leaves}
        if not self._first:
            self._begin(shapes)
        labels = {name for name in shapes if name.startswith(_LABELS)}
        batched = self._batched
        changed = {n for n in batched if shapes.get(n) != self._first[n]}
        if changed - labels or (changed and batched <= labels):
            batched = changed
        if not labels & batched:
            batched = batched | {name for name in labels if shapes[name]}
        return shapes.keys() - batched

    def _begin(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self._first = shapes
        lengths = [shape[0] for shape in shapes.values() if shape]
        if self._size in lengths:
            size = self._size
        elif lengths:
            size = collections.Counter(lengths).most_common(1)[0][0]
        else:
            raise ValueError(
                "At least one tensor should have the batch as its first axis. "
                f"Received scalars only: {sorted(shapes)}. Repeat one of them "
                "for each example."
            )
        self._batched = {
            name for name, shape in shapes.items() if shape[:1] == (size,)
        }
        for name in sorted(shapes.keys() - self._batched):
            _logger.info(
                "%s of shape %s has no batch of %d as its first axis, so it is "
                "given to model_fn whole.",
                name,
                shapes[name],
                size,
            )
