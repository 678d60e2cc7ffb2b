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
    """The ends of all runs after the global step `start`.

    >>> list(itertools.islice(EveryRun(10, steps=2), 3))
    [12, 14, 16]
    """

    def __init__(self, start: int, steps: int = 1):
        self._start = start
        self._steps = steps

    def __iter__(self) -> Iterator[int]:
        return itertools.count(self._start + self._steps, self._steps)

    def with_length(self, steps: int) -> "EveryRun":
        """Returns the ends of runs of another length."""
        return EveryRun(self._start, steps)


class SessionRunHook:
    """User code that is called around every run of the device loop.

    A run is one device program: in training `iterations_per_loop` steps, in
    evaluation and prediction a few batches. The counterpart of
    `tf.compat.v1.train.SessionRunHook`. Override the methods that you need.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> class PrintLoss(kte.hooks.SessionRunHook):
    ...     def before_run(self, run_context):
    ...         return kte.hooks.SessionRunArgs("loss")
    ...     def after_run(self, run_context, run_values):
    ...         print(f"loss = {run_values.results:.3f}")
    """

    def due_steps(self, start: int) -> Iterable[int] | None:
        """Returns the steps after which this hook acts, so that runs end there.

        Without this method, a hook acts on every run, and the next run waits for
        the devices to complete it. With this method, the devices run ahead, and
        only values that the hook reads wait for them. Runs without a set length
        end at due steps; `before_run` and `after_run` are called around all runs.
        A class that overrides one of these two must also override `due_steps`,
        and does not inherit it. Called in `train` and `predict`, and in
        `evaluate` with `use_tpu=False`.

        Args:
            start: The global step at which training starts; in evaluation and
                prediction 0, because their steps are batches.

        Returns:
            Steps after `start` in ascending order, none of them if any end of a
            run suffices; or `None` for every run.
        """
        del start
        return None

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


# The classes that are accepted as hooks.
Hook: TypeAlias = SessionRunHook | keras.callbacks.Callback


class LoopHook(SessionRunHook):
    """A hook of this package, which sees more of the loop than a user's hook.

    Attributes:
        may_read_saves: Whether it may read the checkpoint of a run in `after_run`.
        acts_last: Whether `after_run` is called after that of all other hooks, and
            after the step's checkpoint is saved.
        session_fetches: A pytree of names that `session.run` may fetch after each run
            and at the end, or `None`. The devices keep tensors of `model_fn` for it.
    """

    may_read_saves: bool = False
    acts_last: bool = False
    session_fetches: Any = None

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

    def run_completed(self, session: Session) -> None:
        """Called when the devices have completed a run.

        The next run may already be executing, and changing the variables.

        Args:
            session: Provides the step and the loss after the run.
        """

    def close(self, session: Session) -> None:
        """Called once at a clean end, before any `end`; first for savers."""
