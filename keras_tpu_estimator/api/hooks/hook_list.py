"""A list of hooks that is called as one hook."""

import contextlib
import dataclasses
import heapq
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from keras_tpu_estimator.api.hooks.checkpoint_saver import (
    CheckpointSaverListener,
    check_listeners,
)
from keras_tpu_estimator.api.hooks.session import Session, names_in
from keras_tpu_estimator.api.hooks.session_run_hook import (
    EveryRun,
    Hook,
    LaterArgs,
    LoopHook,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from keras_tpu_estimator.base.common import registry
from keras_tpu_estimator.base.common.field_checks import tuple_of
from keras_tpu_estimator.base.common.shown import shown

# Returns a context in which a hook begins.
Resuming: TypeAlias = Callable[
    [SessionRunHook], contextlib.AbstractContextManager[None]
]


def _no_context(
    hook: SessionRunHook,
) -> contextlib.AbstractContextManager[None]:
    """Returns a context that does nothing."""
    del hook
    return contextlib.nullcontext()


class HookList:
    """The hooks of one call of `train`, `evaluate` or `predict`, called in the order
    given.
    """

    def __init__(self, hooks: Iterable[SessionRunHook], session: Session):
        self.hooks = tuple(hooks)
        self.session = session
        self._is_run_untold = False

    @property
    def allows_run_ahead(self) -> bool:
        """Whether all hooks allow it."""
        return all(hook.allows_run_ahead for hook in self.hooks)

    @property
    def see_every_run(self) -> bool:
        """Whether a hook acts on runs and names no steps."""
        return any(isinstance(h.run_ends(0), EveryRun) for h in self.hooks)

    def run_ends(self, start: int, every: int = 1) -> Iterable[int]:
        """Returns the ends of runs that hooks ask for, in ascending order, given the
        global step at which training starts and the steps of a run for hooks that name
        no steps.
        """
        ends = [hook.run_ends(start) for hook in self.hooks]
        return heapq.merge(
            *(e.with_length(every) if isinstance(e, EveryRun) else e for e in ends)
        )

    def begin(self) -> None:
        """Calls every hook's `begin`."""
        for hook in self.hooks:
            if isinstance(hook, LoopHook):
                hook.open(self.session)
        for hook in self.hooks:
            hook.begin()

    @property
    def may_train(self) -> bool:
        """Whether a hook may run train operations itself, after `begin`."""
        return any(h.may_train for h in self.hooks if isinstance(h, LoopHook))

    def after_create_session(self, resuming: Resuming = _no_context) -> None:
        """Calls every hook's `after_create_session` in the context that `resuming`
        returns for the hook.
        """
        for hook in self.hooks:
            with resuming(hook):
                hook.after_create_session(self.session, None)

    def before_run(self) -> "HookedRun":
        """Calls every hook's `before_run`; returns the run."""
        context = SessionRunContext(self.session)
        requests = [hook.before_run(context) for hook in self.hooks]
        return HookedRun(self, context, requests)

    def ran(self) -> None:
        """Stores a run, which the devices may still be executing."""
        self._is_run_untold = True

    def run_is_made(self) -> None:
        """Reports the completion of a run to `LoopHook`s, once."""
        if self._is_run_untold:
            self._is_run_untold = False
            for hook in self.hooks:
                if isinstance(hook, LoopHook):
                    hook.run_is_made(self.session)

    def end(self, is_interrupted: bool = False) -> None:
        """Calls every hook's `end`; an interrupted call will be resumed."""
        loop_hooks = [h for h in self.hooks if isinstance(h, LoopHook)]
        if is_interrupted:
            for loop_hook in loop_hooks:
                loop_hook.interrupt(self.session)
        for loop_hook in loop_hooks:
            loop_hook.close(self.session)
        for hook in self.hooks:
            hook.end(self.session)


@dataclasses.dataclass(frozen=True)
class HookedRun:
    """One run between `before_run` and `after_run`."""

    _list: HookList
    context: SessionRunContext
    _requests: list[SessionRunArgs | None]

    @property
    def fetches(self) -> tuple[str, ...]:
        """The names that hooks requested."""
        fetches = [
            request.fetches
            for request in self._requests
            if request is not None and request.fetches is not None
        ]
        return tuple(names_in(fetches)) if fetches else ()

    def start(self) -> None:
        """Reports to `LoopHook`s that the run takes place."""
        for hook in self._list.hooks:
            if isinstance(hook, LoopHook):
                hook.start_run()

    def after_run(self) -> bool:
        """Calls every hook's `after_run`; returns whether one asked to stop."""
        # All values are fetched first, because a hook may assign a variable
        # that a later hook requested.
        values = [self._values(request) for request in self._requests]
        pairs = zip(self._list.hooks, values, strict=True)
        # The sort is stable, so equal hooks keep their order.
        for hook, its_values in sorted(pairs, key=lambda p: p[0].acts_last):
            hook.after_run(self.context, its_values)
        self._list.ran()
        return self.context.stop_requested

    def _values(self, request: SessionRunArgs | None) -> SessionRunValues:
        if request is None or isinstance(request, LaterArgs):
            return SessionRunValues(None)
        if request.fetches is None:
            return SessionRunValues(None)
        return SessionRunValues(self._list.session.run(request.fetches))


def validate_hooks(
    hooks: Iterable[Hook] | None, argument: str = "hooks"
) -> tuple[Hook, ...]:
    """Returns hooks, those of TensorFlow and Keras callbacks included, as a tuple;
    `argument` is the argument's name for errors.
    """
    hooks = tuple_of(argument, hooks, Hook, "hook")
    checked = tuple(_adopted(hook, Hook, "adopted") for hook in hooks)
    for hook in checked:
        if not isinstance(hook, Hook):
            raise TypeError(
                f"All `{argument}` must be SessionRunHook instances. Received: "
                f"{shown(hook)}. Derive it from "
                "keras_tpu_estimator.hooks.SessionRunHook or "
                "keras.callbacks.Callback."
            )
    return checked


def validate_listeners(
    listeners: Iterable[Any] | None, argument: str = "saving_listeners"
) -> tuple[CheckpointSaverListener, ...]:
    """Returns listeners, those of TensorFlow included, as a tuple; `argument` is the
    argument's name for errors.
    """
    kind = CheckpointSaverListener
    listeners = tuple_of(argument, listeners, kind, "listener")
    adopted = [_adopted(listener, kind, "adopted_listener") for listener in listeners]
    return check_listeners(adopted, argument)


def _adopted(hook: Any, kind: Any, function: str) -> Any:
    """Returns a hook or listener of another framework as one of a kind, if a front end
    adapts such; others unchanged.
    """
    adapter = None if isinstance(hook, kind) else registry.find("hook_adapter")
    return hook if adapter is None else getattr(adapter, function)(hook)
