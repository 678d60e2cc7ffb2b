"""The base class of hooks: user code around runs of the device loop."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import keras

from keras_tpu_estimator.api.hooks.session import (
    Session,
    check_names,
    refuse_feed,
    warn_of_options,
)


@dataclasses.dataclass(frozen=True)
class SessionRunArgs:
    """The values that a hook fetches after the next run.

    The counterpart of `tf.compat.v1.train.SessionRunArgs`.

    Args:
        fetches: `"global_step"`, `"loss"`, a variable's path, a key of the
            spec's `predictions`, a name that `kte.identity` gave to a tensor,
            or a list, tuple or dict of these; `None` for nothing. A name may
            end with `":0"`. Tensors of `model_fn` are those of the last step of
            the run.
        feed_dict: Must be `None`, because a device loop cannot be fed.
        options: Accepted; has no effect except a logged warning.

    Raises:
        TypeError: `fetches` does not consist of names.
        ValueError: `feed_dict` is set.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> args = kte.hooks.SessionRunArgs({"loss": "loss", "step": "global_step"})
    >>> args = kte.hooks.SessionRunArgs(["dense/bias", "probabilities"])
    """

    fetches: Any
    feed_dict: None = None
    options: Any = None

    def __post_init__(self) -> None:
        if self.fetches is not None:
            check_names("fetches", self.fetches)
        refuse_feed("feed_dict", self.feed_dict)
        warn_of_options("SessionRunArgs", self.options)


class LaterArgs(SessionRunArgs):
    """Names that a hook may fetch itself, in `after_run` or at the end.

    The devices keep tensors of `model_fn` for it. They are fetched only by
    `session.run`, and `run_values.results` is `None`.
    """


@dataclasses.dataclass(frozen=True)
class SessionRunValues:
    """The values that a hook requested.

    Attributes:
        results: Values in the pytree of `SessionRunArgs.fetches`, or `None` if
            nothing was requested.
        options: Always `None`; exists for compatibility.
        run_metadata: Always `None`; exists for compatibility.
    """

    results: Any = None
    options: None = None
    run_metadata: None = None


_NO_ARGS = SessionRunArgs(fetches=None)


class SessionRunContext:
    """A hook's view of one run of the device loop.

    Args:
        session: The session that runs.
    """

    def __init__(self, session: Session):
        self.session = session
        self.original_args = _NO_ARGS
        self._stop_requested = False

    @property
    def stop_requested(self) -> bool:
        """Whether a hook asked to make this the last run."""
        return self._stop_requested

    def request_stop(self) -> None:
        """Makes this the last run."""
        self._stop_requested = True


class EveryRun(Iterable[int]):
    """The ends of all runs after the global step `start`, for a hook that names no
    steps.

    >>> list(itertools.islice(EveryRun(10, steps=2), 3))
    [12, 14, 16]
    """

    def __init__(self, start: int, steps: int = 1):
        self.start = start
        self.steps = steps

    def __iter__(self) -> Iterator[int]:
        return itertools.count(self.start + self.steps, self.steps)

    def with_length(self, steps: int) -> "EveryRun":
        """Returns the ends of runs of another length."""
        return EveryRun(self.start, steps)


# The methods around each run, of this class and of `LoopHook`.
_AROUND_RUNS = ("before_run", "after_run", "start_run", "run_is_made")
# The attributes that describe only these methods.
_DESCRIBING_RUNS = ("allows_run_ahead", "run_ends")


class SessionRunHook:
    """User code that is called around every run of the device loop.

    A run is one device program: in training `iterations_per_loop` steps, in
    evaluation and prediction a few batches. The counterpart of
    `tf.compat.v1.train.SessionRunHook`. Override the methods that you need.

    Attributes:
        allows_run_ahead: Whether the next run of training may begin before the
            devices complete the one that `after_run` is called for. Fetching a
            value waits for it in any case. A class or an object sets it. It
            describes the methods around runs: a subclass that overrides one of
            them, such as `after_run`, has `False` again unless it also sets the
            attribute. Defaults to `False`.
        acts_last: Whether `after_run` is called after that of all other hooks
            and after the step's checkpoint is saved. A class or an object sets
            it. Defaults to `False`.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> class PrintLoss(kte.hooks.SessionRunHook):
    ...     def before_run(self, run_context):
    ...         return kte.hooks.SessionRunArgs("loss")
    ...     def after_run(self, run_context, run_values):
    ...         print(f"loss = {run_values.results:.3f}")
    """

    allows_run_ahead = False
    acts_last = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Resets attributes that describe overridden methods."""
        super().__init_subclass__(**kwargs)
        # Python similarly resets `__hash__` if a class defines `__eq__`.
        for name in _DESCRIBING_RUNS:
            base = next(base for base in cls.__mro__ if name in vars(base))
            if _differ_around_runs(cls, base):
                setattr(cls, name, vars(SessionRunHook)[name])

    def run_ends(self, start: int) -> Iterable[int]:
        """Returns the steps at which a run must end for this hook.

        Called once in training without `iterations_per_loop`, in evaluation
        with `use_tpu=False`, and in prediction.

        Args:
            start: The global step at which training starts; in evaluation and
                prediction 0, because their steps are batches.

        Returns:
            Steps after `start` in ascending order. Defaults to every step (on a
            TPU every second one, as in TensorFlow) if the hook overrides
            methods around runs, and to none otherwise.
        """
        if _differ_around_runs(type(self), SessionRunHook):
            return EveryRun(start)
        return ()

    def begin(self) -> None:
        """Called once, before variables are restored."""

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Called once, when all variables have their values.

        Args:
            session: Reads variables.
            coord: Always `None`; exists for compatibility.
        """

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Called before each run.

        Args:
            run_context: The next run.

        Returns:
            The values to fetch after it, or `None`.
        """

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Called after each run.

        Args:
            run_context: The run that ended; `request_stop()` ends the loop.
            run_values: The values that `before_run` requested.
        """

    def end(self, session: Session) -> None:
        """Called once at a clean end, not after an error.

        Args:
            session: Reads variables.
        """


def _differ_around_runs(one: type, other: type) -> bool:
    """Returns whether two hook classes override methods around runs differently."""
    return any(
        getattr(one, method, None) is not getattr(other, method, None)
        for method in _AROUND_RUNS
    )


# The classes that are accepted as hooks.
Hook: TypeAlias = SessionRunHook | keras.callbacks.Callback


class LoopHook(SessionRunHook):
    """A hook that can tell the next run from the end of the input.

    Attributes:
        may_read_saves: Whether it may read the checkpoint of a run in `after_run`.
    """

    may_read_saves: bool = False

    @property
    def adopted(self) -> Any:
        """The hook of another framework that it calls, or else itself."""
        return self

    def open(self, session: Session) -> None:
        """Called once, before the `begin` of any hook."""

    @property
    def may_train(self) -> bool:
        """Whether the hook may run train operations itself, after `begin`."""
        return False

    def start_run(self) -> None:
        """Called before each run that has input."""

    def run_is_made(self, session: Session) -> None:
        """Called when the devices have completed a run.

        The next run may already be executing, and changing the variables.

        Args:
            session: Provides the step and the loss after the run.
        """

    def interrupt(self, session: Session) -> None:
        """Called once, before any `close`, if the call will be resumed."""

    def close(self, session: Session) -> None:
        """Called once at a clean end, before the `end` of any hook."""
