"""The protocol by which user code takes part in a run of the device loop."""

import dataclasses
import os
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import jax
import keras
import numpy as np

from keras_tpu_estimator.hooks.fetches import check_names
from keras_tpu_estimator.hooks.fetches import refuse_feed


class Session:
    """What a hook may ask of a run: names and their current values.

    Args:
        fetch: Returns the value of a name: `"global_step"`, `"loss"`, or the
            path of a variable.
        live: The Keras model where the loop is, for callbacks. Defaults to
            `None`.
    """

    def __init__(self, fetch: Any, live: Any = None):
        self._fetch = fetch
        self.live = live

    def run(self, fetches: Any) -> Any:
        """The current values of a name, or of a nest of names.

        Args:
            fetches: `"global_step"`, `"loss"`, a variable's path, or a list,
                tuple or dict of these.

        Returns:
            NumPy values in the same nest.

        Raises:
            KeyError: There is nothing of that name.
            TypeError: It is no name.
        """
        check_names("fetches", fetches)
        return self._run(fetches)

    def saved_step(self, directory: str | os.PathLike) -> int | None:
        """The step of this session's last checkpoint in a directory.

        Args:
            directory: Where checkpoints are.

        Returns:
            The step of the one that was written last, or that the session
            started from; `None` if there is neither.

        Raises:
            RuntimeError: This is no session of `train`.
        """
        raise _only_in_training("save checkpoints")

    def save_checkpoint(
        self, directory: str | os.PathLike, basename: str = "model.ckpt"
    ) -> None:
        """Writes the current values into a checkpoint.

        Args:
            directory: Where it is written.
            basename: What its name begins with. Defaults to `'model.ckpt'`.

        Raises:
            RuntimeError: This is no session of `train`.
        """
        raise _only_in_training("save checkpoints")

    def whence_nan(self) -> str:
        """What is known of the first NaN of the last run, as a sentence.

        Returns:
            In training the step of the first loss that is NaN, and the first
            variable that is not finite; elsewhere nothing.
        """
        return ""

    def evaluate(
        self,
        estimator: Any,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Iterable["SessionRunHook"] | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates the current values, without a checkpoint.

        Args:
            estimator: The `TPUEstimator` that is training.
            input_fn: As in `TPUEstimator.evaluate`, as are all others.
            steps: Batches to evaluate. Defaults to all.
            hooks: Called around every run of the evaluation.
            name: The name of the evaluation. Defaults to `None`.

        Returns:
            What `TPUEstimator.evaluate` returns.

        Raises:
            RuntimeError: This is no session of `train`.
        """
        raise _only_in_training("evaluate between steps")

    def _run(self, fetches: Any) -> Any:
        if isinstance(fetches, Mapping):
            return {key: self._run(name) for key, name in fetches.items()}
        if isinstance(fetches, list | tuple):
            values = [self._run(name) for name in fetches]
            # A named tuple takes its fields one by one.
            make = getattr(fetches, "_make", type(fetches))
            return make(values)
        return np.asarray(self._fetch(fetches))


def _only_in_training(action: str) -> RuntimeError:
    return RuntimeError(
        f"Only hooks of `train` may {action}. Received: a hook of `evaluate` "
        "or `predict`. Pass it to `train(hooks=[...])`, or put it into the "
        "`training_hooks` of the spec."
    )


@dataclasses.dataclass(frozen=True)
class SessionRunArgs:
    """What a hook wants to have fetched after the run to come.

    The counterpart of `tf.compat.v1.train.SessionRunArgs`.

    Args:
        fetches: `"global_step"`, `"loss"`, a variable's path, or a list,
            tuple or dict of these; `None` for nothing.
        feed_dict: Has to be `None`: nothing is fed into a device loop.
        options: Accepted; has no effect.

    Raises:
        TypeError: `fetches` are no names.
        ValueError: There is a `feed_dict`.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> args = kte.hooks.SessionRunArgs({"loss": "loss", "step": "global_step"})
    """

    fetches: Any
    feed_dict: None = None
    options: Any = None

    def __post_init__(self) -> None:
        if self.fetches is not None:
            check_names("fetches", self.fetches)
        refuse_feed("feed_dict", self.feed_dict)


@dataclasses.dataclass(frozen=True)
class SessionRunValues:
    """What a hook asked for.

    Attributes:
        results: Values in the nest of `SessionRunArgs.fetches`, or `None` if
            nothing was asked for.
    """

    results: Any = None


class SessionRunContext:
    """One run of the device loop, as a hook sees it.

    Args:
        session: The session that runs.
    """

    def __init__(self, session: Session):
        self.session = session
        self.original_args = SessionRunArgs(fetches=None)
        self._stop_requested = False

    @property
    def stop_requested(self) -> bool:
        """Whether a hook asked that this be the last run."""
        return self._stop_requested

    def request_stop(self) -> None:
        """Makes this the last run."""
        self._stop_requested = True


class SessionRunHook:
    """User code that is called around every run of the device loop.

    A run is one device program: in training `iterations_per_loop` steps, in
    evaluation and prediction a few batches. The counterpart of
    `tf.compat.v1.train.SessionRunHook`; override what is needed.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> class PrintLoss(kte.hooks.SessionRunHook):
    ...     def before_run(self, run_context):
    ...         return kte.hooks.SessionRunArgs("loss")
    ...     def after_run(self, run_context, run_values):
    ...         print(f"loss = {run_values.results:.3f}")
    """

    def begin(self) -> None:
        """Called once, before variables are restored."""

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Called once, when all variables have their values.

        Args:
            session: Reads variables.
            coord: Always `None`; kept for compatibility.
        """

    def before_run(
        self, run_context: SessionRunContext
    ) -> SessionRunArgs | None:
        """Called before each run.

        Args:
            run_context: The run to come.

        Returns:
            What to fetch after it, or `None`.
        """

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Called after each run.

        Args:
            run_context: The run that was; `request_stop()` ends the loop.
            run_values: What `before_run` asked for.
        """

    def end(self, session: Session) -> None:
        """Called once at a clean end, not after an error.

        Args:
            session: Reads variables.
        """


# What is accepted as a hook.
Hook = SessionRunHook | keras.callbacks.Callback


class LoopHook(SessionRunHook):
    """A hook that knows a run to come from the end of the input."""

    def start_run(self) -> None:
        """Called before each run that does take place."""

    def close(self, session: Session) -> None:
        """Called once at a clean end, before the `end` of any hook."""


def validate_hooks(
    hooks: Iterable[Hook] | None, argument: str = "hooks"
) -> tuple[Any, ...]:
    """Returns hooks as a tuple.

    Args:
        hooks: `SessionRunHook`s and `keras.callbacks.Callback`s, or `None`.
        argument: What to call them in an error. Defaults to `'hooks'`.

    Raises:
        TypeError: They are no list, or one of them is neither.
    """
    if isinstance(hooks, SessionRunHook) or not isinstance(
        hooks, Iterable | None
    ):
        raise TypeError(
            f"`{argument}` should be a list of hooks. Received: {hooks!r} of "
            f"type {type(hooks).__name__}. Pass {argument}=[hook] for one."
        )
    checked = tuple(hooks or ())
    for hook in checked:
        if not isinstance(hook, Hook):
            raise TypeError(
                f"All `{argument}` must be SessionRunHook instances. Received: "
                f"{hook!r} of type {type(hook).__name__}. Derive it from "
                "keras_tpu_estimator.hooks.SessionRunHook or "
                "keras.callbacks.Callback."
            )
    return checked


class HookList:
    """Calls hooks in the order given, in every phase.

    Args:
        hooks: The hooks of one call of `train`, `evaluate` or `predict`.
        session: The session they see.
    """

    def __init__(self, hooks: Iterable[SessionRunHook], session: Session):
        self.hooks = tuple(hooks)
        self.session = session

    def begin(self) -> None:
        """Calls every hook's `begin`."""
        for hook in self.hooks:
            hook.begin()

    def after_create_session(self) -> None:
        """Calls every hook's `after_create_session`."""
        for hook in self.hooks:
            hook.after_create_session(self.session, None)

    def before_run(self) -> "HookedRun":
        """Calls every hook's `before_run`; the result sees the run through."""
        context = SessionRunContext(self.session)
        requests = [hook.before_run(context) for hook in self.hooks]
        return HookedRun(self, context, requests)

    def end(self) -> None:
        """Calls every hook's `end`."""
        for hook in self.hooks:
            if isinstance(hook, LoopHook):
                hook.close(self.session)
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
        """The names that hooks asked for."""
        asked = [each.fetches for each in self._requests if each is not None]
        return tuple({*jax.tree.leaves(asked)})

    def start(self) -> None:
        """Tells the hooks that want to know that the run takes place."""
        for hook in self._list.hooks:
            if isinstance(hook, LoopHook):
                hook.start_run()

    def after_run(self) -> bool:
        """Calls every hook's `after_run`; whether one asked to stop."""
        # All of them first: a hook may assign what a later one asked for.
        values = [self._values(request) for request in self._requests]
        for hook, its_values in zip(self._list.hooks, values, strict=True):
            hook.after_run(self.context, its_values)
        return self.context.stop_requested

    def _values(self, request: SessionRunArgs | None) -> SessionRunValues:
        if request is None or request.fetches is None:
            return SessionRunValues(None)
        return SessionRunValues(self._list.session.run(request.fetches))
