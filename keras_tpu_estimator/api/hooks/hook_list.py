"""A list of hooks that is called as one hook."""

import contextlib
import dataclasses
import functools
import heapq
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from keras_tpu_estimator.api.hooks.checkpoint_saver import (
    CheckpointSaverListener,
    SavingHook,
    check_listeners,
)
from keras_tpu_estimator.api.hooks.session import Session, names_in
from keras_tpu_estimator.api.hooks.session_run_hook import (
    EveryRun,
    Hook,
    LoopHook,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from keras_tpu_estimator.base.common import registry
from keras_tpu_estimator.base.common.field_checks import tuple_of
from keras_tpu_estimator.base.common.ledger import calling_hooks
from keras_tpu_estimator.base.common.shown import shown

# The methods around each run.
_AROUND_RUNS = frozenset({"before_run", "after_run", "start_run"})
# The classes whose methods do nothing.
_BASES = frozenset({*LoopHook.__mro__})

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


def _overrides(hook: SessionRunHook, name: str) -> bool:
    """Returns whether a hook, or its class, overrides a method that does nothing."""
    kind = SessionRunHook if hasattr(SessionRunHook, name) else LoopHook
    if not isinstance(hook, kind):
        return False
    method = getattr(hook, name)
    return getattr(method, "__func__", method) is not getattr(kind, name)


def _due_steps(hook: SessionRunHook, start: int) -> Iterable[int] | None:
    """Returns a hook's `due_steps`, if they describe its methods around runs.

    They describe the methods of the same class and of its bases.
    """
    if "due_steps" in vars(hook):
        return hook.due_steps(start)
    for kind in type(hook).__mro__:
        if kind in _BASES:
            continue
        if "due_steps" in vars(kind):
            return hook.due_steps(start)
        if not _AROUND_RUNS.isdisjoint(vars(kind)):
            return None
    return ()


class HookList:
    """The hooks of one call of `train`, `evaluate` or `predict`, called in the order
    given; each method is called only for the hooks that override it.
    """

    def __init__(self, hooks: Iterable[SessionRunHook], session: Session):
        self.hooks = tuple(hooks)
        self.session = session
        self.loop_hooks = [hook for hook in self.hooks if isinstance(hook, LoopHook)]
        self._before_runs = self._overriding("before_run")
        self.starting = self._overriding("start_run")
        # The sort is stable, so equal hooks keep their order.
        self.after_runs = sorted(self._overriding("after_run"), key=_acts_last)
        self._completing = self._overriding("run_completed")
        self._is_run_unreported = False

    def _overriding(self, name: str) -> list[tuple[int, Any]]:
        """Returns the hooks that override a method, with their indices."""
        indexed = enumerate(self.hooks)
        return [(index, hook) for index, hook in indexed if _overrides(hook, name)]

    @functools.cached_property
    def allows_run_ahead(self) -> bool:
        """Whether a run may begin before the devices complete the previous one."""
        return all(_due_steps(hook, 0) is not None for hook in self.hooks)

    @property
    def see_every_run(self) -> bool:
        """Whether a hook acts on every run."""
        return any(isinstance(ends, EveryRun) for ends in self._ends(0))

    def run_ends(self, start: int, every: int = 1) -> Iterable[int]:
        """Returns the ends of runs that hooks ask for, in ascending order, given the
        global step at which training starts and the steps of a run for hooks that act
        on every run.
        """
        return heapq.merge(
            *(
                ends.with_length(every) if isinstance(ends, EveryRun) else ends
                for ends in self._ends(start)
            )
        )

    def _ends(self, start: int) -> list[Iterable[int]]:
        due_steps = [_due_steps(hook, start) for hook in self.hooks]
        return [EveryRun(start) if steps is None else steps for steps in due_steps]

    @calling_hooks
    def begin(self) -> None:
        """Calls every hook's `begin`."""
        for _, hook in self._overriding("open"):
            hook.open(self.session)
        for _, hook in self._overriding("begin"):
            hook.begin()

    @property
    def may_train(self) -> bool:
        """Whether a hook may run train operations itself, after `begin`."""
        return any(hook.may_train for hook in self.loop_hooks)

    @calling_hooks
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
        requests = {}
        with calling_hooks:
            for index, hook in self._before_runs:
                args = hook.before_run(context)
                if args is not None and args.fetches is not None:
                    requests[index] = args.fetches
        return HookedRun(self, context, requests)

    def ran(self) -> None:
        """Stores a run, which the devices may still be executing."""
        self._is_run_unreported = True

    def run_completed(self) -> None:
        """Reports the completion of a run to `LoopHook`s, once."""
        if self._is_run_unreported:
            self._is_run_unreported = False
            with calling_hooks:
                for _, hook in self._completing:
                    hook.run_completed(self.session)

    @calling_hooks
    def end(self) -> None:
        """Calls every hook's `end`."""
        for _, hook in sorted(self._overriding("close"), key=_saves_first):
            hook.close(self.session)
        for _, hook in self._overriding("end"):
            hook.end(self.session)


_NO_VALUES = SessionRunValues(None)


def _acts_last(indexed: tuple[int, SessionRunHook]) -> bool:
    _, hook = indexed
    return isinstance(hook, LoopHook) and hook.acts_last


def _saves_first(indexed: tuple[int, SessionRunHook]) -> bool:
    _, hook = indexed
    return not isinstance(hook, SavingHook)


@dataclasses.dataclass(frozen=True)
class HookedRun:
    """One run between `before_run` and `after_run`.

    `_requests` has the names that hooks requested, by the index of the hook.
    """

    _list: HookList
    context: SessionRunContext
    _requests: dict[int, Any]

    @property
    def fetches(self) -> tuple[str, ...]:
        """The names that hooks requested or may fetch."""
        names = [hook.session_fetches for hook in self._list.loop_hooks]
        fetches = [*self._requests.values(), *(n for n in names if n is not None)]
        return tuple(names_in(fetches)) if fetches else ()

    def start(self) -> None:
        """Reports to `LoopHook`s that the run takes place."""
        with calling_hooks:
            for _, hook in self._list.starting:
                hook.start_run()

    def after_run(self) -> bool:
        """Calls every hook's `after_run`; returns whether one asked to stop."""
        # All values are fetched first, because a hook may assign a variable
        # that a later hook requested.
        values = {
            index: SessionRunValues(self._list.session.run(names))
            for index, names in self._requests.items()
        }
        with calling_hooks:
            for index, hook in self._list.after_runs:
                hook.after_run(self.context, values.get(index, _NO_VALUES))
        self._list.ran()
        return self.context.stop_requested


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
