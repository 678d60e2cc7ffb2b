"""Recorded runs of a copy of an estimator, in a separate directory.

The copy runs one step at a time, without the user's hooks, `host_call` and dropout.
Everything else is the code that users run.
"""

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_estimator.api.config.tpu_config import IterationsPerLoop
from keras_tpu_estimator.api.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunHook,
)
from keras_tpu_estimator.base.common.types import InputFn
from keras_tpu_estimator.engine.program.store import (
    GLOBAL_STEP,
    VariableStore,
    slot_owners,
)
from keras_tpu_estimator.estimator.exporting_estimator import ExportTargets
from keras_tpu_estimator.estimator.tpu_estimator import TPUEstimator
from keras_tpu_estimator.files.checkpoints import saving
from keras_tpu_estimator.front_ends.front_end import front_end_of
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.workflow.comparing import exports
from keras_tpu_estimator.workflow.comparing.observing import (
    FLOW,
    GRADIENT,
    HOST,
    RATE,
    Observations,
    ObservingFrontEnd,
)
from keras_tpu_estimator.workflow.comparing.records import (
    Batch,
    EvaluationRecord,
    ExportRecord,
    PredictionRecord,
    States,
    StepRecord,
    TrainingRecord,
    VariableFacts,
    sampled,
)

# Steps between checkpoints; the last one is always saved.
_ONLY_AT_THE_END = 1_000_000_000


class Recorder:
    """A copy of an estimator that records its calls.

    Args:
        context: The functions and settings of the estimator.
        directory: An empty directory for its checkpoints.
    """

    def __init__(self, context: EstimatorContext, directory: str):
        self._observations = Observations()
        self._directory = directory
        front_end = ObservingFrontEnd(
            front_end_of(context.model_fn), self._observations
        )
        config = dataclasses.replace(
            context.config,
            model_dir=directory,
            save_checkpoints_secs=None,
            save_checkpoints_steps=_ONLY_AT_THE_END,
            resume_input=False,
            progress=False,
            # Other services must not receive these runs.
            metric_writers=("jsonl",),
        )
        self._plain = dataclasses.replace(
            context,
            model_dir=directory,
            config=config,
            mode_devices=dataclasses.replace(context.mode_devices, config=config),
            iterations=IterationsPerLoop(1, "count"),
            log_every=None,
        )
        marked = _Marked(context.model_fn, front_end)
        self._estimator = _Copy(dataclasses.replace(self._plain, model_fn=marked))

    def start_from(self, values: Mapping[str, Any]) -> None:
        """Writes the checkpoint that the next call starts from."""
        step = int(values.get(GLOBAL_STEP, 0))
        values = {path: v for path, v in values.items() if path != GLOBAL_STEP}
        saving.save(self._directory, step, values)

    def train(
        self,
        input_fn: InputFn,
        steps: int,
        replayed: Sequence[Batch] | None = None,
        states: States | None = None,
        state_bytes: int = 0,
    ) -> TrainingRecord:
        """Trains, and returns the record of each step.

        Args:
            input_fn: The user's function.
            steps: The number of steps; fewer if the input ends.
            replayed: Batches to use in its place. Defaults to none.
            states: The values to set before steps. Defaults to `None`: each step
                begins with those of the step before.
            state_bytes: The record has all values after each step if they take at most
                this many bytes for all steps. Defaults to 0.
        """
        self._observations.restart(replayed)
        context = self._estimator.context
        hook = _RecordingHook(context, self._observations, state_bytes // max(steps, 1))
        if replayed is not None:
            steps = min(steps, len(replayed))
        # A loss that is not a number is recorded, and ends the training.
        hooks = [hook, keras.callbacks.TerminateOnNaN()]
        if states is not None:
            hooks.append(_Continuation(context, hook, states))
        self._estimator.train(input_fn, hooks=hooks, steps=steps)
        return TrainingRecord(
            self._observations.batches_of(len(hook.steps)),
            hook.initial,
            hook.variables,
            hook.steps,
            hook.dataflow,
            tuple(self._observations.dropout),
            hook.constant_rates,
        )

    def evaluate(
        self, input_fn: InputFn, steps: int, replayed: Sequence[Batch] | None = None
    ) -> EvaluationRecord:
        """Evaluates some batches, and returns the metrics."""
        self._observations.restart(replayed)
        if replayed is not None:
            steps = min(steps, len(replayed))
        metrics = self._estimator.evaluate(input_fn, steps=steps)
        del metrics[GLOBAL_STEP]
        return EvaluationRecord(self._observations.batches_of(steps), metrics)

    def predict(
        self, input_fn: InputFn, steps: int, replayed: Sequence[Batch] | None = None
    ) -> PredictionRecord:
        """Predicts some batches, and returns the predictions of all examples."""
        self._observations.restart(replayed)
        predicted: Any = self._estimator.predict(input_fn, yield_single_examples=False)
        with contextlib.closing(predicted):
            with_keys = [
                batch if isinstance(batch, Mapping) else {"output": batch}
                for batch in itertools.islice(predicted, steps)
            ]
        joined = {
            key: np.concatenate([np.atleast_1d(batch[key]) for batch in with_keys])
            for key in (with_keys[0] if with_keys else ())
        }
        return PredictionRecord(self._observations.batches[: len(with_keys)], joined)

    def export(self, export: Any) -> ExportRecord:
        """Exports the latest checkpoint, and returns the signatures."""
        base = os.path.join(self._directory, "export")
        folder = _Copy(self._plain).export(dataclasses.replace(export, base=base))
        return ExportRecord(exports.signatures_of(folder))


class _Copy(TPUEstimator):
    """An estimator with the functions and settings of another."""

    def __init__(self, context: EstimatorContext):
        self._context = context
        self._export_targets = ExportTargets(to_cpu=True, to_tpu=False, api_version=1)

    def export(self, export: Any) -> str:
        """Writes an export, and returns its folder."""
        return self._export(export, None)

    @property
    def context(self) -> EstimatorContext:
        """The functions and settings."""
        return self._context


class _Marked:
    """A user's `model_fn` with another front end."""

    def __init__(self, model_fn: Callable[..., Any], front_end: ObservingFrontEnd):
        self.__wrapped__ = model_fn
        self.front_end = front_end

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.__wrapped__(*arguments, **named)


class _RecordingHook(SessionRunHook):
    """A hook that records each step.

    Attributes:
        initial: The values before the first step, by path.
        variables: The facts of all variables, by path.
        dataflow: The forward pass of the first step, or `None` before it.
        constant_rates: The learning rates that the code sets as numbers, by path.
    """

    def __init__(
        self,
        context: EstimatorContext,
        observations: Observations,
        state_bytes: int,
    ):
        self._context = context
        self._observations = observations
        # The most bytes of a state to record.
        self._state_bytes = state_bytes
        self._records_states = False
        # The values that are set before the next step.
        self.start: dict[str, np.ndarray] | None = None
        self.initial: dict[str, np.ndarray] = {}
        self.variables: dict[str, VariableFacts] = {}
        self.steps: list[StepRecord] = []
        self.dataflow: Any = None
        self.constant_rates: dict[str, float] = {}

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Records the initial values."""
        del coord
        store = self._context.runtime.program.store
        self.variables = facts_of(store)
        self.initial = session.run({path: path for path in self.variables})
        size = sum(np.asarray(value).nbytes for value in self.initial.values())
        self._records_states = size <= self._state_bytes
        rates = store.constants & store.variables.keys()
        self.constant_rates = {
            path: float(rate)
            for path, rate in session.run({path: path for path in rates}).items()
        }

    def before_run(self, run_context: Any) -> SessionRunArgs:
        """Requests everything that is compared."""
        del run_context
        names = ["loss", *self.variables, *self._observations.names]
        return SessionRunArgs({name: name for name in names})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Records one step."""
        del run_context
        results = run_values.results
        named = {name: results[name] for name in self._observations.names}
        if not self.steps and FLOW in named:
            self.dataflow = self._observations.dataflow(np.asarray(named[FLOW]))
        values = {path: results[path] for path in self.variables}
        self.steps.append(
            StepRecord(
                float(results["loss"]),
                _behind(GRADIENT, named, sampled),
                {path: sampled(value) for path, value in values.items()},
                _behind(RATE, named, float),
                _behind(HOST, named, sampled),
                self.start,
                _copies(values) if self._records_states else None,
            )
        )


class _Continuation(keras.callbacks.Callback):
    """Sets the values with which each step but the first begins."""

    def __init__(self, context: EstimatorContext, hook: _RecordingHook, states: States):
        super().__init__()
        self._context = context
        self._hook = hook
        self._states = states

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Assigns the values, which the loop then continues with."""
        del batch, logs
        number = len(self._hook.steps) + 1
        state = None if number == 1 else self._states(number)
        if state is None:
            self._hook.start = None
            return
        # The variables have the values of the loop once a callback reads its model.
        _ = self.model
        variables = self._context.runtime.program.store.variables
        for path, value in state.items():
            variables[path].assign(value)
        self._hook.start = {path: sampled(value) for path, value in state.items()}


def _copies(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns copies of the values of floating-point variables."""
    arrays = {path: np.array(value) for path, value in values.items()}
    return {p: a for p, a in arrays.items() if jnp.issubdtype(a.dtype, jnp.floating)}


def _behind(
    prefix: str, values: Mapping[str, Any], convert: Callable[[Any], Any]
) -> dict[str, Any]:
    """Returns the converted values whose names have a prefix, by the rest."""
    return {
        name.removeprefix(prefix): convert(value)
        for name, value in values.items()
        if name.startswith(prefix)
    }


def facts_of(store: VariableStore) -> dict[str, VariableFacts]:
    """Returns the facts of the variables that checkpoints contain."""
    owners = slot_owners(store.variables)
    facts = {}
    for path in store.saved_paths():
        variable = store.variables[path]
        facts[path] = VariableFacts(
            path,
            tuple(variable.shape),
            str(variable.dtype),
            bool(variable.trainable) and path not in store.slots,
            path in store.slots or path in owners,
            owners.get(path),
        )
    return facts
