"""The runs of a device loop, with hooks around each."""

import contextlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import Self

from keras_tpu_estimator.engine.inputs.infeed import Infeed
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.tracing.rows_variable import own_rows
from keras_tpu_estimator.keras_model.estimator_model import EstimatorModel
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.loop_state import LoopState
from keras_tpu_estimator.runs.staging import StagedSteps
from keras_tpu_estimator.spec.hooks.callback_hook import with_callbacks
from keras_tpu_estimator.spec.hooks.hook_list import HookList
from keras_tpu_estimator.spec.hooks.session import Session
from keras_tpu_estimator.spec.hooks.session_run_hook import Hook


def run_hooked(
    hooks: HookList,
    first: StagedSteps,
    infeed: Infeed[StagedSteps],
    run: Callable[[StagedSteps, tuple[str, ...]], bool],
    agree: Callable[[bool], bool],
    runs_ahead: bool = False,
) -> None:
    """Runs the device loop until the input, `run` or a hook ends it.

    As in the original, hooks hear of a run that the end of the input prevents:
    their `before_run` is called.

    Args:
        hooks: The hooks, begun.
        first: The first steps.
        infeed: The others.
        run: Makes one run, which begins with some steps; is given the names
            that hooks fetch. Returns whether it was the last one.
        agree: Whether to stop, as some hook of any host wants to; told what
            the hooks here want.
        runs_ahead: Whether a run may begin before hooks are told that the one
            before is made; `run` has to tell them then. Defaults to `False`.
    """
    staged: StagedSteps | None = first
    while True:
        hooked = hooks.before_run()
        if staged is None:
            break
        hooked.start()
        is_last = run(staged, hooked.fetches)
        if agree(hooked.after_run()) or is_last:
            break
        staged = infeed.take_ready() if runs_ahead else None
        if staged is None:
            hooks.run_is_made()  # Before input that may be long in coming.
            staged = next(infeed, None)
    hooks.run_is_made()


def hooks_around(
    hooks: Iterable[Hook],
    context: EstimatorContext,
    progress: LoopState,
    graph: Any = None,
) -> HookList:
    """The hooks of one call, with a session, and callbacks made hooks.

    Args:
        hooks: Hooks and Keras callbacks.
        context: What the calls have in common.
        progress: Where the loop is.
        graph: As in `Step`. Defaults to `None`.
    """
    live = LiveModel(context, progress)
    session = Session(live.fetch, live, progress.wait, graph)
    return HookList(with_callbacks(hooks), session)


class LiveModel:
    """Inside its `with` block, the Keras model is where the loop is.

    Args:
        context: What the calls have in common.
        progress: Where the loop is.

    Attributes:
        mode: What the loop does, a value of `ModeKeys`.
    """

    def __init__(self, context: EstimatorContext, progress: LoopState):
        self.mode = progress.values.mode
        self._context = context
        self._values = context.runtime.values
        self._loop_state = progress
        self._blocks: list[contextlib.AbstractContextManager[None]] = []

    @property
    def model(self) -> EstimatorModel:
        """The model."""
        return self._context.model

    @property
    def step(self) -> int:
        """The global step."""
        return self._loop_state.step

    @property
    def last_step(self) -> int | None:
        """The global step to stop at, or `None` if that is open."""
        return self._loop_state.last_step

    def fetch(self, name: str) -> Any:
        """The value of a name, of variables as user code has them.

        Args:
            name: As `LoopState.fetch` takes it.

        Raises:
            KeyError: There is nothing of that name.
        """
        value = self._loop_state.fetch(name)
        rows = self._context.runtime.program.store.rows
        # Not what else has this name.
        is_variable = value is self._loop_state.values.get(name)
        if is_variable and name in rows:
            return own_rows(value, rows[name])
        return value

    def logs_of_run(self) -> Callable[[], dict[str, Any]]:
        """What the last run has to tell by name, for who waits for it."""
        outputs = dict(self._loop_state.outputs)
        if self.mode == ModeKeys.PREDICT:
            return lambda: outputs
        state, losses = self._loop_state, [*self._loop_state.losses]
        return lambda: {"loss": float(state.loss(losses))} | outputs

    def assign(self, assigned: Mapping[str, Any]) -> None:
        """Gives variables other values, for the next run.

        Args:
            assigned: Values by path.
        """
        self._values.edit(self._loop_state.values, assigned)

    def __enter__(self) -> Self:
        block = self._values.visible(self._loop_state.values)
        block.__enter__()
        self._blocks.append(block)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._blocks.pop().__exit__(*exception)
