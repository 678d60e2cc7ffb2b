"""The values of a model's variables during one call."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping

import jax

from keras_tpu_estimator.tracing.variables import AnyValues


class CallValues(Mapping[str, jax.Array]):
    """The values of the variables during one call, by path.

    What steps and user code assign holds for the rest of the call.

    Args:
        values: The values at its beginning.
        mode: A value of `ModeKeys`.

    Attributes:
        mode: The same.
        edits: How often user code has changed values.
        checkpoint: The checkpoint that holds the same values at the end, if
            one does.
        on_edit: Told what user code assigns, by path; `None` for nobody.
    """

    def __init__(self, values: Mapping[str, jax.Array], mode: str):
        self._values = dict(values)
        self.mode = mode
        self.edits = 0
        self.checkpoint: str | None = None
        self.on_edit: Callable[[AnyValues], None] | None = None

    def __getitem__(self, path: str) -> jax.Array:
        return self._values[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def update(self, assigned: Mapping[str, jax.Array]) -> None:
        """Takes what a step has assigned."""
        self._values.update(assigned)

    def edit(self, assigned: Mapping[str, jax.Array]) -> None:
        """Takes what user code has assigned."""
        self._values.update(assigned)
        self.edits += 1
