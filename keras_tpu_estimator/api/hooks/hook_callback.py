"""Hooks as callbacks of plain Keras models."""

from typing import Any

import jax
import keras
import numpy as np

from keras_tpu_estimator.api.hooks.callback_hook import CallbackHook
from keras_tpu_estimator.api.hooks.hook_list import HookedRun, HookList
from keras_tpu_estimator.api.hooks.loop_results import LoopResults
from keras_tpu_estimator.api.hooks.session import Session, check_retention
from keras_tpu_estimator.api.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.growing_files import shown_at_end
from keras_tpu_estimator.files.checkpoints import saving
from keras_tpu_estimator.files.directory.retention import Retention


def as_callback(hook: SessionRunHook) -> keras.callbacks.Callback:
    """Returns a Keras callback that calls a hook.

    The hook is called around every batch (with `steps_per_execution`, every
    execution) of the method that received the callback, but not in a validation
    inside `fit`. `request_stop()` ends `fit`, `evaluate` or `predict`. It can
    fetch `"loss"` and all other names in Keras's logs, `"global_step"`, which
    is `model.optimizer.iterations`, and variables of the model and the
    optimizer by path. In `predict` it can fetch `"outputs"`, or the keys of the
    predictions of an `EstimatorModel`.

    Args:
        hook: A `SessionRunHook`.

    Returns:
        A `keras.callbacks.Callback`.

    Raises:
        TypeError: It is not a `SessionRunHook`, or is itself made of callbacks.

    Example:

    >>> import keras, numpy as np
    >>> import keras_tpu_estimator as kte
    >>> class StopAtThree(kte.hooks.SessionRunHook):
    ...     def before_run(self, run_context):
    ...         return kte.hooks.SessionRunArgs("global_step")
    ...     def after_run(self, run_context, run_values):
    ...         if run_values.results == 3:
    ...             run_context.request_stop()
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.ones((8, 2)), np.ones((8, 1))
    >>> callback = kte.hooks.as_callback(StopAtThree())
    >>> _ = model.fit(x, y, batch_size=1, verbose=0, callbacks=[callback])
    >>> int(model.optimizer.iterations.value)
    3
    """
    if not isinstance(hook, SessionRunHook) or isinstance(hook, CallbackHook):
        raise TypeError(
            "`as_callback` must receive a SessionRunHook. Received: "
            f"{shown(hook)}. Keras callbacks need no conversion."
        )
    return HookCallback(hook)


class HookCallback(keras.callbacks.Callback):
    """A callback that calls a hook in a Keras model's loops."""

    def __init__(self, hook: SessionRunHook):
        super().__init__()
        self._hooks = HookList([hook], FitSession(self))
        self._run: HookedRun | None = None
        self._logs: dict[str, Any] = {}
        self._mode: str | None = None

    def set_model(self, model: keras.Model) -> None:
        """Stores the model; Keras does not call this for a validation."""
        super().set_model(model)
        self._mode = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins, if the callback was passed to `fit`."""
        self._begin("train")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Calls the hook's `before_run`."""
        self._before("train")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Calls the hook's `after_run`."""
        if self._after("train", logs):
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        """Calls the hook's `end`."""
        self._end("train")

    def on_test_begin(self, logs: Any = None) -> None:
        """Begins, if the callback was passed to `evaluate`."""
        self._begin("test")

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Calls the hook's `before_run`."""
        self._before("test")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Calls the hook's `after_run`."""
        if self._after("test", logs):
            self.model.stop_evaluating = True

    def on_test_end(self, logs: Any = None) -> None:
        """Calls the hook's `end`."""
        self._end("test")

    def on_predict_begin(self, logs: Any = None) -> None:
        """Begins, if the callback was passed to `predict`."""
        self._begin("predict")

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Calls the hook's `before_run`."""
        self._before("predict")

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """Calls the hook's `after_run`."""
        if self._after("predict", logs):
            self.model.stop_predicting = True

    def on_predict_end(self, logs: Any = None) -> None:
        """Calls the hook's `end`."""
        self._end("predict")

    def _begin(self, mode: str) -> None:
        if self._mode is None:
            self._mode = mode
            self._logs = {}
            self._hooks.begin()
            self._hooks.after_create_session()

    def _before(self, mode: str) -> None:
        if mode == self._mode:
            self._run = self._hooks.before_run()

    def _after(self, mode: str, logs: Any) -> bool:
        if mode != self._mode or self._run is None:
            return False
        self._logs = dict(logs or {})
        run, self._run = self._run, None
        return run.after_run()

    def _end(self, mode: str) -> None:
        if mode == self._mode:
            self._mode = None
            with shown_at_end():
                self._hooks.end()

    def variables(self) -> dict[str, keras.Variable]:
        """The variables of the model and the optimizer by path."""
        optimizer = getattr(self.model, "optimizer", None)
        slots = [] if optimizer is None else optimizer.variables
        return {v.path: v for v in [*self.model.variables, *slots]}

    def wait(self) -> None:
        """Waits for the last batch."""
        jax.block_until_ready(self._logs)

    @property
    def results(self) -> LoopResults:
        """The step and the loss after the last batch."""
        loss = self._logs.get("loss", np.nan)
        return LoopResults(int(self.fetch("global_step")), (np.atleast_1d(loss),))

    def fetch(self, name: str) -> Any:
        """Returns the value of a name in the logs, or of a variable."""
        if name in self._logs:
            return self._logs[name]
        optimizer = getattr(self.model, "optimizer", None)
        iterations = getattr(optimizer, "iterations", None)
        if name == "global_step" and iterations is not None:
            return np.asarray(keras.ops.convert_to_numpy(iterations))
        by_path = self.variables()
        if name not in by_path:
            raise KeyError(
                "A hook can fetch only logs, variables, and 'global_step' if the "
                f"model has an optimizer. Received: {name!r}. Fetch one of the "
                f"logs {sorted(self._logs)} or of the variables {sorted(by_path)}."
            )
        return keras.ops.convert_to_numpy(by_path[name])


class FitSession(Session):
    """The session of a hook in a Keras model's loops."""

    def __init__(self, callback: HookCallback):
        super().__init__(callback.fetch, wait=callback.wait, loop=callback)
        self._callback = callback
        self._saved: dict[str, int] = {}

    def saved_step(self, directory: PathLike) -> int | None:
        """Returns the step of this session's last checkpoint in a directory."""
        return self._saved.get(paths.canonical(directory))

    def save_checkpoint(
        self,
        directory: PathLike,
        basename: str = "model.ckpt",
        wait: bool = True,
        retention: Retention | None = None,
    ) -> None:
        """Writes the variables into a checkpoint, and waits for it."""
        check_retention(retention)
        del wait
        step = self.results.step
        values = {
            path: keras.ops.convert_to_numpy(variable)
            for path, variable in self._callback.variables().items()
        }
        saving.save(
            directory,
            step,
            values,
            basename=basename,
            retention=retention or Retention(),
        )
        self._saved[paths.canonical(directory)] = step
