"""Operations that hooks run between loops, each time on a separate batch.

In TensorFlow, `session.run(train_op)` in a hook takes the next batch of the input. GANs
train their two networks by such hooks.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.api.hooks.session import InputEndsError
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.engine.device.runtime import Runtime
from keras_tpu_estimator.engine.program.additions import CHECKS
from keras_tpu_estimator.engine.program.steps import NAMED, STEP_NUMBERS
from keras_tpu_estimator.runs.loop_state import LoopState
from keras_tpu_estimator.runs.plan import LoopPlan
from keras_tpu_estimator.runs.staging import StagedInput, StagedStack, StepsByShape


class BatchRuns:
    """The runs of hooks on batches, which they take before those of the coming loop.

    `coming` is the first part of this loop, or `None` if it is not taken from `infeed`
    yet, or if the input has ended.
    """

    def __init__(
        self,
        runtime: Runtime,
        loop_state: LoopState,
        plan: LoopPlan,
        steps: StepsByShape,
        infeed: StagedInput,
        coming: StagedStack | None,
    ):
        self._runtime = runtime
        self._loop_state = loop_state
        self._plan = plan
        self._steps = steps
        self._infeed = infeed
        self._no_metrics = runtime.loop.no_metrics(ModeKeys.TRAIN)
        self.coming = coming

    def take_coming(self) -> StagedStack | None:
        """Returns the first part of the coming loop, and leaves later parts."""
        coming, self.coming = self.coming, None
        return coming

    def run(self, operations: Sequence[str]) -> dict[str, Any]:
        """Runs operations of the graph on one batch, and returns tensors by name."""
        staged = self._take(operations)
        state, runtime = self._loop_state, self._runtime
        # Two concurrent programs can block simulated devices.
        state.wait()
        main = self._steps.prepared(staged.shapes, lambda: staged.prepare(runtime))
        step = main.additions.batch_step(operations, runtime.program.store)
        values = state.values
        runtime.values.complete(values, step)
        before = values.step
        assigned, _, losses, outputs = runtime.loop.run(
            step,
            values,
            self._no_metrics,
            staged.data,
            staged.rows,
            step.named_among(name for name in operations if ":" in name),
        )
        number = int(np.asarray(outputs[STEP_NUMBERS])[-1])
        values.update(assigned, 1, number)
        losses.block_until_ready()
        step.additions.check(outputs.get(CHECKS, {}))
        if number != before:
            state.results = dataclasses.replace(state.results, step=number)
            self._plan.ran(0, number - before, is_known=False)
        named: dict[str, Any] = jax.device_get(outputs[NAMED])
        return named

    @contextlib.contextmanager
    def until_input_ends(self) -> Iterator[None]:
        """Ends the `with` block where a hook reaches the end of the input.

        As in TensorFlow, training then ends as if the loop had reached it.
        """
        try:
            yield
        except Exception as error:
            if not isinstance(error.__cause__, InputEndsError):
                raise

    def _take(self, operations: Sequence[str]) -> StagedStack:
        """Returns the next batch."""
        if not self._infeed.is_cut:
            raise ValueError(
                "The operations that a hook runs on batches must be known before the "
                f"first step. Received: {', '.join(operations)}. Store them in an "
                "attribute of the hook in `__init__` or `begin`."
            )
        try:
            one, self.coming = self._infeed.take_one(self.coming)
        except StopIteration:
            raise InputEndsError from None
        return one
