"""A loop's values as those of the Keras model, while user code looks at it."""

from collections.abc import Iterable
from typing import Any
from typing import Self

import jax
import jax.numpy as jnp

from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.device.estimator_model import EstimatorModel
from keras_tpu_estimator.device.runtime import Runtime
from keras_tpu_estimator.hooks.callback_hook import with_callbacks
from keras_tpu_estimator.hooks.hook_list import HookList
from keras_tpu_estimator.hooks.session import Session
from keras_tpu_estimator.loops.progress import Progress
from keras_tpu_estimator.program.store import GLOBAL_STEP
from keras_tpu_estimator.program.store import Values


def hooks_around(
    hooks: Iterable[Any], runtime: Runtime, progress: Progress, mode: str
) -> HookList:
    """The hooks of one call, with a session, and callbacks made hooks.

    Args:
        hooks: Hooks and Keras callbacks.
        runtime: The model.
        progress: The loop's current values.
        mode: A value of `ModeKeys`.
    """
    live = LiveModel(runtime, progress, mode)
    session = Session(progress.fetch, live, progress.wait)
    return HookList(with_callbacks(hooks), session)


class LiveModel:
    """Inside its `with` block, the Keras model is where the loop is.

    The variables get the loop's values when a callback reads its `model`, and
    what it assigned to them goes into the loop at the end of the block. Who
    does not look pays nothing. Blocks of several loops may be nested.

    Args:
        runtime: The model and its values.
        progress: The loop's current values.
        mode: A value of `ModeKeys`.

    Attributes:
        model: The model.
        mode: The same.
    """

    def __init__(self, runtime: Runtime, progress: Progress, mode: str):
        self.model: EstimatorModel = runtime.model
        self.mode = mode
        self._runtime = runtime
        self._progress = progress
        self._shown: Values = {}
        self._outer: list[Any] = []

    @property
    def step(self) -> int:
        """The global step."""
        return self._progress.step

    @property
    def last_step(self) -> int | None:
        """The global step to stop at, or `None` if that is open."""
        return self._progress.last_step

    def logs(self) -> dict[str, Any]:
        """What the last run has to tell, by name."""
        outputs = dict(self._progress.outputs)
        if self.mode == ModeKeys.PREDICT:
            return outputs
        return {"loss": float(self._progress.fetch("loss"))} | outputs

    def __enter__(self) -> Self:
        self._outer.append(self.model.show_values)
        self.model.show_values = self._show
        return self

    def __exit__(self, *exception: Any) -> None:
        self.model.show_values = self._outer.pop()
        if self.model.shown_by is self:
            self.take_back()

    def _show(self) -> None:
        """Gives the variables the loop's values; they are not copied."""
        if self.model.shown_by is self:
            return
        if self.model.shown_by is not None:
            self.model.shown_by.take_back()
        self.model.assign(self._progress.values)
        self._shown = {
            path: self._value(path) for path in self._progress.values
        }
        self.model.shown_by = self

    def take_back(self) -> None:
        """Puts what was assigned into the loop."""
        self.model.shown_by = None
        shown, self._shown = self._shown, {}
        changed = {
            path: value
            for path, before in shown.items()
            # Steps are counted by the loop alone.
            if (value := self._value(path)) is not before
            and path != GLOBAL_STEP
        }
        if not changed:
            return
        # Copied, for training uses up each buffer, and no two may be one.
        changed = jax.tree.map(jnp.copy, changed)
        changed = self._runtime.loop.put_values(changed)
        # Another dict, for this one may be the runtime's.
        self._progress.values = self._progress.values | changed
        self._progress.edits += 1
        if self.mode == ModeKeys.TRAIN:
            self._runtime.override(changed)

    def _value(self, path: str) -> Any:
        return self.model.program.store.variables[path].value
