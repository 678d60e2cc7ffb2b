"""Keras callbacks as hooks of the device loop, and their epochs."""

import contextlib
import dataclasses
import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import keras
import numpy as np

from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import (
    EveryRun,
    Hook,
    LoopHook,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from keras_tpu_estimator.base.common.field_checks import check_int
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.hosts.agreement import is_chief, process_count

# Keras's `params["epochs"]` must be a number, even if the end is open.
_OPEN_END = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class _Calls:
    """Keras's name of a mode, and the attribute of a model that ends it."""

    name: str
    stop: str


_CALLS = {
    ModeKeys.TRAIN: _Calls("train", "stop_training"),
    ModeKeys.EVAL: _Calls("test", "stop_evaluating"),
    ModeKeys.PREDICT: _Calls("predict", "stop_predicting"),
}


# The methods that Keras calls around each batch.
_AROUND_BATCHES = (
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_batch_begin",
    "on_batch_end",
)


class CallbackHook(LoopHook):
    """A hook that calls Keras callbacks.

    Callbacks can be passed wherever hooks are accepted. Use this class for
    epochs that are longer than one run of the device loop.

    To the callbacks a run is a batch, as with Keras's `steps_per_execution`:
    `on_train_batch_begin` receives the index of its first step, and
    `on_train_batch_end` that of its last step, counted from 0 within the epoch,
    and `{"loss": ...}`, the mean over the run. An epoch ends with the run that
    completes `steps_per_epoch` steps, and at the end of training, unless
    training is interrupted. Its logs are means over its steps; with
    `train(validation=...)` they also contain `val_loss` and the other results.
    All of these logs contain the `train_metrics` of a spec, computed from the
    start of the epoch, as in Keras. Setting `model.stop_training` makes the run
    the last one.

    If a callback overrides a method of batches, the next run waits for the
    devices to complete each one.

    Args:
        callbacks: A `keras.callbacks.Callback`, or a list of them.
        steps_per_epoch: Steps of an epoch. Epochs are then numbered by the
            global step, so that a resumed training continues to count. By
            default each run is an epoch, counted from 0 in each `train` that
            does not resume an interrupted one.

    Raises:
        TypeError: A callback has another class, or `steps_per_epoch` is not an
            int.
        ValueError: `steps_per_epoch` is not positive.

    Example:

    >>> import keras
    >>> import keras_tpu_estimator as kte
    >>> stopping = keras.callbacks.EarlyStopping(monitor="loss", patience=3)
    >>> hook = kte.hooks.CallbackHook(stopping, steps_per_epoch=1000)
    >>> hook.steps_per_epoch
    1000
    """

    def __init__(
        self,
        callbacks: keras.callbacks.Callback | Iterable[keras.callbacks.Callback],
        steps_per_epoch: int | None = None,
    ):
        if isinstance(callbacks, keras.callbacks.Callback):
            callbacks = (callbacks,)
        self.callbacks = tuple(callbacks)
        for callback in self.callbacks:
            if not isinstance(callback, keras.callbacks.Callback):
                raise TypeError(
                    "`callbacks` must be keras.callbacks.Callback objects. "
                    f"Received: {shown(callback)}"
                )
        if steps_per_epoch is not None:
            check_int("steps_per_epoch", steps_per_epoch, minimum=1)
        self.steps_per_epoch = steps_per_epoch
        self._resumed: Mapping[str, Any] | None = None
        self._files = contextlib.ExitStack()

    def resume(self, epochs: Mapping[str, Any] | None) -> None:
        """Sets the epoch that the next call of `train` continues.

        Args:
            epochs: The result of `epochs_state`; `None` for none.
        """
        self._resumed = epochs

    def epochs_state(self) -> dict[str, Any]:
        """Returns the number of the current epoch, and its logs so far."""
        return {
            "epochs": self._epochs.state(),
            "metrics": self._metrics.counts(),
        }

    def due_steps(self, start: int) -> Iterable[int] | None:
        """Returns the ends of epochs, or `None` if a callback acts on every run."""
        if self._has_run_methods:
            return None
        every = self.steps_per_epoch
        if every is None:
            return EveryRun(start)
        return itertools.count(start - start % every + every, every)

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Passes the model to the callbacks, and calls their first methods."""
        del coord
        self._session, self._live = session, session.live
        self._validate = session.validate
        self._metrics = session.count_metrics()
        self._calls = _CALLS[self._live.mode]
        self._epochs = Epochs(self.steps_per_epoch)
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            self._epochs.resume(resumed["epochs"], session.results.step)
            if self._epochs.is_open:
                self._metrics.resume(resumed["metrics"])
        self._all_epochs = self._count_epochs()
        self._runs = 0
        self._logs: dict[str, Any] = {}
        self._params = {
            "verbose": 1,
            "epochs": self._all_epochs,
            "steps": self.steps_per_epoch,
        }
        setattr(self._live.model, self._calls.stop, False)
        self._called = called_here(self.callbacks)
        # A call that failed has not closed this context.
        self._files.close()
        self._files.enter_context(files_of_chief(self._called))
        with self._live:
            for callback in self._called:
                callback.set_params(self._params)
                callback.set_model(self._live.model)
            self._notify("begin", {})
        if self._epochs.is_open:
            # The epoch began before the checkpoint, which contains its
            # assignments.
            with self._live.without_edits(), self._live:
                self._notify_epoch("begin", self._epochs.number, {})

    def start_run(self) -> None:
        """Begins a batch, and an epoch if the last one has ended."""
        self._start = self._session.results.step if self._trains else self._runs
        with self._live:
            if self._trains and not self._epochs.is_open:
                self._notify_epoch("begin", self._epochs.begin(self._start), {})
            self._notify("batch_begin", self._batch(self._start), {})

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Ends the batch, and the epoch if it is complete."""
        del run_values
        logs = self._live.logs_of_run()
        self._runs += 1
        end = self._session.results.step if self._trains else self._runs
        if not self._trains or self._has_run_methods:
            self._logs = logs() | self._metrics.result()
            with self._live:
                self._notify("batch_end", self._batch(end - 1), dict(self._logs))
        if self._trains:
            self._epochs.count(logs, end - self._start)
            if self._epochs.is_over(end):
                self._end_epoch(is_last=end == self._live.last_step)
        if getattr(self._live.model, self._calls.stop):
            run_context.request_stop()

    def close(self, session: Session) -> None:
        """Ends the last epoch, unless it will be resumed, and the mode."""
        is_resumed = session.is_interrupted
        if self._trains and self._epochs.is_open and not is_resumed:
            self._end_epoch(is_last=True)
        with self._files, self._live:
            self._notify("end", self._last_logs())

    @property
    def _has_run_methods(self) -> bool:
        # Some callbacks only start to record once an epoch has begun.
        return any(map(_has_run_methods, self.callbacks))

    @property
    def _trains(self) -> bool:
        return self._live.mode == ModeKeys.TRAIN

    def _batch(self, step: int) -> int:
        """Returns the index of a step within its epoch, or that of a run."""
        return step - self._epochs.first_step if self._trains else step

    def _count_epochs(self) -> int:
        """Returns the number of epochs, including earlier ones."""
        if not self._trains:
            return 1
        count = self._epochs.count_of(self._live.last_step, self._live.loops)
        return _OPEN_END if count is None else count

    def _last_logs(self) -> dict[str, Any]:
        if self._live.mode == ModeKeys.PREDICT:
            return {}
        return dict(self._logs) if self._trains else self._live.logs_of_run()()

    def _end_epoch(self, is_last: bool) -> None:
        epoch, means = self._epochs.end()
        self._logs = means | self._metrics.result()
        self._metrics.reset()
        self._logs |= _validation_logs(self._validate())
        if is_last:  # Training may end earlier than planned.
            self._params["epochs"] = epoch + 1
        with self._live:
            self._notify_epoch("end", epoch, dict(self._logs))

    def _notify(self, event: str, *args: Any) -> None:
        for callback in self._called:
            getattr(callback, f"on_{self._calls.name}_{event}")(*args)

    def _notify_epoch(self, event: str, *args: Any) -> None:
        for callback in self._called:
            getattr(callback, f"on_epoch_{event}")(*args)


def _has_run_methods(callback: keras.callbacks.Callback) -> bool:
    """Returns whether a callback overrides a method around runs of training."""
    return any(
        getattr(getattr(callback, name), "__func__", None)
        is not getattr(keras.callbacks.Callback, name)
        for name in _AROUND_BATCHES
    )


def _validation_logs(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the results of an evaluation under Keras's names."""
    return {
        f"val_{name}": float(value) if np.ndim(value) == 0 else value
        for name, value in result.items()
        if name != "global_step"
    }


def with_epochs(hooks: Iterable[Hook]) -> list[Hook]:
    """Returns hooks in which one `CallbackHook` has epochs."""
    hooks = list(hooks)
    kinds = (CallbackHook, keras.callbacks.Callback)
    if any(isinstance(hook, kinds) for hook in hooks):
        return hooks
    return [*hooks, CallbackHook(())]


def with_callbacks(hooks: Iterable[Hook]) -> tuple[SessionRunHook, ...]:
    """Returns hooks with all callbacks in one hook, in the first place."""
    hooks = tuple(hooks)
    callbacks = [h for h in hooks if isinstance(h, keras.callbacks.Callback)]
    if not callbacks:
        return hooks
    merged = [h for h in hooks if not isinstance(h, keras.callbacks.Callback)]
    merged.insert(hooks.index(callbacks[0]), CallbackHook(callbacks))
    return tuple(merged)


def callbacks_of(hooks: Iterable[Hook]) -> list[keras.callbacks.Callback]:
    """Returns all callbacks among hooks and in `CallbackHook`s."""
    callbacks: list[keras.callbacks.Callback] = []
    for hook in hooks:
        if isinstance(hook, CallbackHook):
            callbacks += hook.callbacks
        elif isinstance(hook, keras.callbacks.Callback):
            callbacks.append(hook)
    return callbacks


# Returns numbers by name; calling it may wait for the devices.
Logs: TypeAlias = Callable[[], dict[str, Any]]


class Epochs:
    """The current epoch, and the means over it; without `steps` each run is one epoch.

    Attributes:
        is_open: Whether an epoch has begun and not ended.
        first_step: The global step at which the epoch begins, also if this
            training begins later.
    """

    def __init__(self, steps: int | None):
        self._steps = steps
        self.first_step = 0
        self._count = 0
        # The sums over the steps of those runs whose logs were read.
        self._sums: dict[str, float] = {}
        self._counted = 0
        self._runs: list[tuple[Logs, int]] = []
        self.is_open = False

    def count_of(self, last_step: int | None, runs: int | None) -> int | None:
        """Returns the number of epochs up to a step, or in a number of runs."""
        if self._steps is None:
            return None if runs is None else self._count + runs
        return None if last_step is None else -(-last_step // self._steps)

    def begin(self, step: int) -> int:
        """Begins an epoch at a step; returns its number."""
        self.is_open = True
        self._runs, self._sums, self._counted = [], {}, 0
        self.first_step = step
        if self._steps is not None:
            self._count = step // self._steps
            self.first_step = self._count * self._steps
        return self._count

    def count(self, logs: Logs, steps: int) -> None:
        """Adds the means over a number of steps, which are read later."""
        self._runs.append((logs, steps))

    def is_over(self, step: int) -> bool:
        """Returns whether the epoch ends with the run that ended at a step."""
        return self._steps is None or step // self._steps > self._count

    def end(self) -> tuple[int, dict[str, Any]]:
        """Ends the epoch; returns its number and the means over it."""
        self._sum_up()
        self.is_open = False
        number = self._count
        self._count += 1
        counted = max(self._counted, 1)
        means = {name: value / counted for name, value in self._sums.items()}
        return number, means

    def state(self) -> dict[str, Any]:
        """Returns the argument of `resume`; waits for the logs."""
        self._sum_up()
        return {
            "steps": self._steps,
            "count": self._count,
            "is_open": self.is_open,
            "first_step": self.first_step,
            "sums": dict(self._sums),
            "counted": self._counted,
        }

    def resume(self, state: Mapping[str, Any], step: int) -> None:
        """Continues from a result of `state` at a global step, unless the length of an
        epoch has changed.
        """
        if state["steps"] != self._steps:
            return
        self._count = state["count"]
        if state["is_open"] and self.is_over(step):
            # The state was saved before the end of the epoch.
            self._count += 1
        elif state["is_open"]:
            self.is_open = True
            self.first_step = state["first_step"]
            self._sums = dict(state["sums"])
            self._counted = state["counted"]

    @property
    def number(self) -> int:
        """The number of the open epoch, or of the next one."""
        return self._count

    def _sum_up(self) -> None:
        """Adds what runs logged to the sums, in the order of the runs."""
        runs, self._runs = self._runs, []
        for logs, steps in runs:
            for name, value in logs().items():
                self._sums[name] = self._sums.get(name, 0.0) + steps * value
            self._counted += steps


# The path attribute of each callback that writes files.
_PATHS: Mapping[type, str] = {
    keras.callbacks.CSVLogger: "filename",
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.TensorBoard: "log_dir",
}


def called_here(
    callbacks: Iterable[keras.callbacks.Callback],
) -> tuple[keras.callbacks.Callback, ...]:
    """Returns the callbacks that this process calls, without `RemoteMonitor` on all but
    one; raises if a callback would delete the files of other processes.
    """
    backup = keras.callbacks.BackupAndRestore
    callbacks = tuple(callbacks)
    if process_count() > 1 and any(isinstance(c, backup) for c in callbacks):
        raise ValueError(
            "`BackupAndRestore` must not be used with several processes, "
            "because each would replace and delete the backup of the others. "
            "Leave it out: `train` saves checkpoints and resumes from the "
            "latest one."
        )
    if is_chief():
        return callbacks
    reports = keras.callbacks.RemoteMonitor
    return tuple(c for c in callbacks if not isinstance(c, reports))


@contextlib.contextmanager
def files_of_chief(
    callbacks: Iterable[keras.callbacks.Callback],
) -> Iterator[None]:
    """Redirects files to a temporary directory, except on the chief; all processes call
    each callback, because reading a sharded variable takes all of them.
    """
    if is_chief():
        yield
        return
    with (
        tempfile.TemporaryDirectory() as directory,
        contextlib.ExitStack() as changes,
    ):
        for number, callback in enumerate(callbacks):
            folder = os.path.join(directory, str(number))
            for name, value in _redirected(callback, folder).items():
                changes.callback(setattr, callback, name, vars(callback)[name])
                setattr(callback, name, value)
        yield


def _redirected(callback: keras.callbacks.Callback, directory: str) -> dict[str, Any]:
    """Returns the attributes with which a callback writes to a directory."""
    for kind, name in _PATHS.items():
        if isinstance(callback, kind):
            os.mkdir(directory)
            path = str(getattr(callback, name))
            attributes: dict[str, Any] = {
                # Keras looks at the ending, and fills in `{epoch}`.
                name: os.path.join(directory, os.path.basename(path))
            }
            if isinstance(callback, keras.callbacks.ModelCheckpoint):
                attributes["verbose"] = 0
            return attributes
    return {}
