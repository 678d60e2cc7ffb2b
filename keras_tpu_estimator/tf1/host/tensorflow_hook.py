"""TensorFlow hooks as hooks of this package."""

import contextlib
import dataclasses
import functools
import logging
import os
import sys
from collections.abc import Iterable
from typing import Any

from keras_tpu_estimator.api.hooks.checkpoint_saver import (
    CheckpointSaverHook,
    CheckpointSaverListener,
    GraphListener,
)
from keras_tpu_estimator.api.hooks.needless_hooks import FeedFnHook
from keras_tpu_estimator.api.hooks.profiler import ProfilerHook
from keras_tpu_estimator.api.hooks.session import Session, refuse_feed, warn_of_options
from keras_tpu_estimator.api.hooks.session_run_hook import (
    EveryRun,
    LoopHook,
    SessionRunContext,
    SessionRunValues,
)
from keras_tpu_estimator.api.hooks.stopping import StopAtStepHook
from keras_tpu_estimator.base.upstream import tensorflow_hook_names as names
from keras_tpu_estimator.files.directory.retention import Retention
from keras_tpu_estimator.tf1.host.graph_session import (
    HookedGraph,
    InputGraphSession,
    Request,
    graph_session,
)

_logger = logging.getLogger("keras_tpu_estimator")
# Hooks of these packages read no checkpoints.
_OWN_PACKAGES = frozenset({"keras_tpu_estimator", "tensorflow"})
# Zero hours keep each checkpoint forever.
_SMALLEST_HOURS = 1e-9


def adopted(hook: Any) -> Any:
    """Returns a TensorFlow hook, which must not feed values, as our own; others
    unchanged.
    """
    train = _train()
    if train is None or not isinstance(hook, train.SessionRunHook):
        return hook
    # This package implements the hooks of the loop; those of the graph run as
    # they are.
    if type(hook) is train.StopAtStepHook:
        steps = names.NUM_STEPS.get(hook)
        if steps is not None:
            return StopAtStepHook(num_steps=steps)
        return StopAtStepHook(last_step=names.LAST_STEP.get(hook))
    if type(hook) is train.CheckpointSaverHook:
        return CheckpointSaverHook(
            names.CHECKPOINT_DIR.get(hook),
            checkpoint_basename=os.path.basename(names.SAVE_PATH.get(hook)),
            listeners=[adopted_listener(one) for one in names.LISTENERS.get(hook)],
            saver=retention_of_saver(names.SAVER.get(hook)),
            **_interval(names.TIMER.get(hook)),
        )
    if type(hook) is train.ProfilerHook:
        directory = os.path.dirname(names.OUTPUT_FILE.get(hook))
        interval = _interval(names.TIMER_OF_PROFILER.get(hook))
        return ProfilerHook(output_dir=directory, **interval)
    if type(hook) is train.FeedFnHook:
        return FeedFnHook(hook.feed_fn)
    if isinstance(hook, train.CheckpointSaverHook):
        return TensorFlowSaverHook(hook)
    return TensorFlowHook(hook)


def retention_of_saver(saver: Any) -> Retention | None:
    """Returns the checkpoints that a `tf.train.Saver` keeps; `None` for other values.

    As in the original, they replace those of `RunConfig`.
    """
    if isinstance(saver, _SessionSaver):
        return saver.retention
    train = _train()
    if train is None or not isinstance(saver, train.Saver):
        return None
    hours = max(float(names.KEEP_EVERY_HOURS.get(saver)), _SMALLEST_HOURS)
    return Retention(int(names.MAX_TO_KEEP.get(saver) or 0), hours)


def adopted_listener(listener: Any) -> Any:
    """Returns a TensorFlow listener as our own; others unchanged."""
    train = _train()
    if train is None or not isinstance(listener, train.CheckpointSaverListener):
        return listener
    return TensorFlowListener(listener)


def _train() -> Any:
    """Returns `tf.compat.v1.train`, or `None` if TensorFlow is not imported."""
    tensorflow = sys.modules.get("tensorflow")
    return None if tensorflow is None else tensorflow.compat.v1.train


def _package_of(hook: Any) -> str:
    """Returns the name of the package that defines a hook's class."""
    return type(hook).__module__.partition(".")[0]


def _may_read_saves(hook: Any) -> bool:
    """Returns whether a hook may read checkpoints: whether it is of a user's class.

    A class with `get_state` must act before the save that contains its state.
    """
    is_of_user = _package_of(hook) not in _OWN_PACKAGES
    return is_of_user and not hasattr(hook, "get_state")


def _interval(timer: Any) -> dict[str, Any]:
    return {
        "save_secs": names.EVERY_SECS.get(timer),
        "save_steps": names.EVERY_STEPS.get(timer),
    }


def _values(results: Any) -> Any:
    """Returns the values of a hook, with empty records of the run."""
    from tensorflow.compat.v1 import RunMetadata, RunOptions

    return _train().SessionRunValues(results, RunOptions(), RunMetadata())


def _values_in(hook: Any) -> list[Any]:
    """Returns the attributes of a hook, and the values that its methods captured."""
    values = [*getattr(hook, "__dict__", {}).values()]
    for name in ("after_create_session", "before_run", "after_run"):
        method = getattr(hook, name)
        closure = getattr(method, "__closure__", None) or ()
        for cell in closure:
            # The name of a cell may not be assigned yet.
            with contextlib.suppress(ValueError):
                values.append(cell.cell_contents)
    return values


def _fetches_at_end(hook: Any) -> Any:
    """Returns a hook's fetches at the end, which it does not request before."""
    train = _train()
    if isinstance(hook, train.FinalOpsHook):
        return names.FINAL_OPS.get(hook)
    if isinstance(hook, train.LoggingTensorHook) and names.LOGS_AT_END.get(hook):
        return names.LOGGED_TENSORS.get(hook)
    return None


@dataclasses.dataclass
class _EarlyCall:
    """A call of a hook before the model exists, to initialize iterators."""

    session: InputGraphSession
    coordinator: Any
    is_complete: bool = False

    @property
    def suffices(self) -> bool:
        """Whether the hook must not be called again."""
        return self.is_complete and bool(self.session.initialized)


class TensorFlowHook(LoopHook):
    """A TensorFlow hook, whose methods have the graph as the default one, and which can
    fetch each value until the end that it has requested once.
    """

    def __init__(self, hook: Any):
        self.hook = hook
        self.may_read_saves = _may_read_saves(hook)
        self.session_fetches: list[str] = []
        self._early: _EarlyCall | None = None

    @property
    def adopted(self) -> Any:
        """TensorFlow's hook."""
        return self.hook

    @property
    def may_initialize(self) -> bool:
        """Whether `after_create_session` may initialize an iterator of the input."""
        is_own = _package_of(self.hook) in _OWN_PACKAGES
        return not is_own and self._has_own("after_create_session")

    @property
    def may_train(self) -> bool:
        """Whether the hook has train operations, which its methods may run."""
        if _package_of(self.hook) in _OWN_PACKAGES:
            return False
        return self._hooked.trains(_values_in(self.hook))

    def due_steps(self, start: int) -> Iterable[int] | None:
        """Returns all runs, if the hook overrides methods around them."""
        if not any(map(self._has_own, ("before_run", "after_run"))):
            return ()
        # TensorFlow's hooks wait only for the values that they fetch.
        return EveryRun(start) if _package_of(self.hook) == "tensorflow" else None

    def _has_own(self, name: str) -> bool:
        """Returns whether the hook, or its class, overrides a method."""
        method = getattr(self.hook, name)
        base = getattr(_train().SessionRunHook, name)
        return getattr(method, "__func__", method) is not base

    def open(self, session: Session) -> None:
        """Stores the graph of the program."""
        self._requested: set[str] = set()
        self._session = graph_session(session, self._requested)
        self._hooked: HookedGraph = session.graph
        self._coordinator = _train().Coordinator()
        if self._early is not None:
            self._session.input_graph = self._early.session.graph
            self._coordinator = self._early.coordinator

    def create_early(self, session: InputGraphSession) -> None:
        """Calls `after_create_session` with the session of an input graph."""
        self._early = early = _EarlyCall(session, _train().Coordinator())
        with session.graph.as_default():
            self.hook.after_create_session(session, early.coordinator)
        early.is_complete = True

    def begin(self) -> None:
        """Calls the hook, which may add operations to the graph."""
        with self._hooked.scope():
            self.hook.begin()

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Calls the hook, unless an early call initialized an iterator."""
        del session, coord
        if self._early is not None and self._early.suffices:
            return
        with self._hooked.scope():
            self.hook.after_create_session(self._session, self._coordinator)

    def before_run(self, run_context: SessionRunContext) -> None:
        """Calls the hook; requests all values that it has ever requested."""
        del run_context
        train = _train()
        original = train.SessionRunArgs(self._hooked.fetched)
        self._context = train.SessionRunContext(original, self._session)
        with self._hooked.scope():
            args = self.hook.before_run(self._context)
            refuse_feed("feed_dict", (args and args.feed_dict) or None)
            warn_of_options("SessionRunArgs", args and args.options)
            at_end = self._request(_fetches_at_end(self.hook))
            fetches = args and args.fetches
            # Operations that assign a hook's variables run on the host, after the step.
            assigns = self._hooked.assigns(fetches)
            self._assigning = fetches if assigns else None
            self._run_request = self._request(None if assigns else fetches)
        for request in (at_end, self._run_request):
            self._requested.update(() if request is None else request.names)
        self.session_fetches = sorted(self._requested)

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Calls the hook with the values that it requested."""
        del run_values
        results = None
        if self._assigning is not None:
            results = self._session.run(self._assigning)
        elif self._run_request is not None:
            try:
                results = self._session.results(self._run_request)
            except KeyError as error:
                raise ValueError(
                    f"{type(self.hook).__name__} must fetch tensors that "
                    "model_fn makes, because for batches of another size "
                    "model_fn is called again, without the operations of "
                    f"`begin`. Received {sorted(self._run_request.names)}, not all "
                    "of which exist. Make them in model_fn, or drop a last, "
                    "smaller batch."
                ) from error
        with self._hooked.scope():
            self.hook.after_run(self._context, _values(results))
        if self._context.stop_requested or self._coordinator.should_stop():
            run_context.request_stop()

    def end(self, session: Session) -> None:
        """Calls the hook, and stops the threads that it started."""
        del session
        with self._hooked.scope():
            self.hook.end(self._session)
        self._coordinator.request_stop()
        self._early = None

    def _request(self, fetches: Any) -> Request | None:
        return None if fetches is None else self._hooked.request(fetches)


class TensorFlowSaverHook(TensorFlowHook):
    """A subclass of TensorFlow's saver hook, for which this package saves."""

    def __init__(self, hook: Any):
        super().__init__(hook)
        listeners = [
            listener.listener if isinstance(listener, _ListenerOfSaves) else listener
            for listener in names.LISTENERS.get(hook)
        ]
        # Removes the listeners of an earlier call.
        self._own_listeners = [
            listener
            for listener in listeners
            if not isinstance(listener, _ListenerForTensorFlow)
        ]

    def open(self, session: Session) -> None:
        """Gives the hook a saver that calls the session, and a shared timer."""
        super().open(session)
        self._opened = session
        retention = retention_of_saver(names.SAVER.get(self.hook))
        self.saver = _SessionSaver(session, retention)
        names.SAVER.set(self.hook, self.saver)
        _share_time(names.TIMER.get(self.hook), session)

    def set_listeners(self, listeners: Iterable[CheckpointSaverListener]) -> None:
        """As in `CheckpointSaverHook`."""
        later_listeners = [
            _ListenerForTensorFlow(listener, self) for listener in listeners
        ]
        every_listener = (*self._own_listeners, *later_listeners)
        called = [_ListenerOfSaves(listener, self) for listener in every_listener]
        names.LISTENERS.set(self.hook, called)

    @property
    def session(self) -> Session:
        """The session of the call, for additional listeners."""
        return self._opened


def _share_time(timer: Any, session: Session) -> None:
    """Makes a timer of seconds trigger on all hosts at the same step."""
    if not names.EVERY_SECS.is_set(timer) or names.EVERY_SECS.get(timer) is None:
        return  # All hosts count the same steps.
    triggers_here = functools.partial(type(timer).should_trigger_for_step, timer)
    timer.should_trigger_for_step = lambda step: session.is_so_anywhere(
        triggers_here(step)
    )


class _SessionSaver:
    """The part of a `Saver` that TensorFlow's hook uses, for a session; `was_prevented`
    is whether a NaN loss prevented the last checkpoint.
    """

    # TensorBoard would show a `SaverDef`.
    saver_def = None

    def __init__(self, session: Session, retention: Retention | None):
        self._session = session
        self.retention = retention
        self.was_prevented = False

    def save(
        self, session: object, save_path: str, global_step: int, **kwargs: Any
    ) -> str:
        """Writes a checkpoint, unless it exists."""
        del session, kwargs
        directory, basename = os.path.split(save_path)
        before = self._session.saved_step(directory)
        self.was_prevented = False
        if before != global_step:
            self._session.save_checkpoint(directory, basename, retention=self.retention)
            self.was_prevented = self._session.saved_step(directory) == before
        return f"{save_path}-{global_step}"


class _ListenerOfSaves:
    """A listener that is not called for saves that a NaN loss prevented."""

    def __init__(self, listener: Any, hook: TensorFlowSaverHook):
        self.listener = listener
        self._hook = hook
        self.begin, self.before_save = listener.begin, listener.before_save
        self.end = listener.end

    def after_save(self, session: object, step: int) -> bool | None:
        if self._hook.saver.was_prevented:
            return None
        stops: bool | None = self.listener.after_save(session, step)
        return stops


class _ListenerForTensorFlow:
    """A listener of this package, for TensorFlow's hook."""

    def __init__(self, listener: CheckpointSaverListener, hook: TensorFlowSaverHook):
        self._listener = listener
        self._hook = hook
        self.begin = listener.begin

    def before_save(self, session: object, step: int) -> None:
        del session
        self._listener.before_save(self._hook.session, int(step))

    def after_save(self, session: object, step: int) -> bool | None:
        del session
        return self._listener.after_save(self._hook.session, int(step))

    def end(self, session: object, step: int) -> None:
        del session
        self._listener.end(self._hook.session, int(step))


class TensorFlowListener(GraphListener):
    """A listener of TensorFlow's class that this package's hooks call."""

    def __init__(self, listener: Any):
        self.listener = listener
        self._hooked: HookedGraph | None = None

    def open(self, session: Session) -> None:
        """Stores the graph of the program."""
        self._hooked = session.graph

    def begin(self) -> None:
        """Calls the listener, which may add operations to the graph."""
        with contextlib.ExitStack() as stack:
            if self._hooked is not None:
                stack.enter_context(self._hooked.scope())
            self.listener.begin()

    def before_save(self, session: Session, global_step_value: int) -> None:
        """Calls the listener."""
        tensorflow_session = graph_session(session)
        self.listener.before_save(tensorflow_session, global_step_value)

    def after_save(self, session: Session, global_step_value: int) -> bool | None:
        """Calls the listener."""
        tensorflow_session = graph_session(session)
        stops: bool | None = self.listener.after_save(
            tensorflow_session, global_step_value
        )
        return stops

    def end(self, session: Session, global_step_value: int) -> None:
        """Calls the listener."""
        self.listener.end(graph_session(session), global_step_value)
