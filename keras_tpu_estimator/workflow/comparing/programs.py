"""The two programs of a comparison, and their records so far."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from keras_tpu_estimator.base.common.types import InputFn, PathLike
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.formats import loading
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.workflow.comparing.inputs import input_difference
from keras_tpu_estimator.workflow.comparing.pairing import Pairing, paired
from keras_tpu_estimator.workflow.comparing.recorder import Recorder
from keras_tpu_estimator.workflow.comparing.records import (
    EvaluationRecord,
    ExportRecord,
    PredictionRecord,
    TrainingRecord,
)
from keras_tpu_estimator.workflow.comparing.rounding import nearly, opposite, roughly

# The most bytes of the values after all steps with which other programs begin steps.
_STATE_BYTES = 1 << 31
# Powers of an Adam optimizer's decay rates.
_POWERS = ("beta1_power", "beta2_power")


class OldProgram:
    """The program that the other one must equal.

    It runs four times. In the copies, each step begins with values that differ from
    those of the first run: in one by rounding, and in the others by more.

    Attributes:
        training: The record of its training.
        copies: The records of the copies.
    """

    training: TrainingRecord
    copies: tuple[TrainingRecord, ...]

    def __init__(self, context: EstimatorContext, directory: str):
        self._recorder = Recorder(context, os.path.join(directory, "old"))
        self._perturbed = Recorder(context, os.path.join(directory, "perturbed"))

    def train(
        self,
        input_fn: InputFn,
        steps: int,
        initial: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Trains, from `initial` or the program's initial values, and its copies."""
        if initial is not None:
            self._recorder.start_from(initial)
        self.training = self._recorder.train(input_fn, steps, state_bytes=_STATE_BYTES)
        # Evaluations follow the last one.
        far = [self._train_copy(input_fn, moved) for moved in (roughly, opposite)]
        self.copies = self._train_copy(input_fn, nearly), *far

    def _train_copy(
        self,
        input_fn: InputFn,
        perturbed: Callable[[Mapping[str, np.ndarray], int], dict[str, np.ndarray]],
    ) -> TrainingRecord:
        training = self.training
        self._perturbed.start_from(perturbed(training.initial, 1))
        states = training.states(perturbed)
        return self._perturbed.train(
            input_fn, len(training.steps), training.batches, states
        )

    def evaluate(
        self, input_fn: InputFn, steps: int
    ) -> tuple[EvaluationRecord, EvaluationRecord]:
        """Returns the metrics after the training, and of the copy."""
        record = self._recorder.evaluate(input_fn, steps)
        return record, self._perturbed.evaluate(input_fn, steps, record.batches)

    def predict(
        self, input_fn: InputFn, steps: int
    ) -> tuple[PredictionRecord, PredictionRecord]:
        """Returns the predictions after the training, and of the copy."""
        record = self._recorder.predict(input_fn, steps)
        return record, self._perturbed.predict(input_fn, steps, record.batches)

    def export(self, export: Any) -> ExportRecord:
        """Returns the signatures of an export after training."""
        return self._recorder.export(export)


class NewProgram:
    """The program that is compared with the other one.

    Args:
        mapping: Paths of its variables by those of the old program, or `None`.

    Attributes:
        training: The record of its training.
        pairing: The pairs of variables.
        notes: What the reader should know, one sentence each.
    """

    training: TrainingRecord
    pairing: Pairing
    notes: tuple[str, ...] = ()

    def __init__(
        self,
        context: EstimatorContext,
        directory: str,
        mapping: Mapping[str, str] | None = None,
    ):
        # One step shows which variables it has.
        self._first_look = Recorder(context, os.path.join(directory, "first_look"))
        self._recorder = Recorder(context, os.path.join(directory, "new"))
        self._mapping = mapping

    def train(self, input_fn: InputFn, old: TrainingRecord) -> None:
        """Trains from the values of the old program, with its batches."""
        look = self._first_look.train(input_fn, 1)
        difference = input_difference(old.batches[0], look.batches[0])
        if difference is not None:
            self.notes = (
                f"The inputs differ, or are shuffled: {difference} Both programs were "
                "given the old program's batches.",
            )
        rates = {**old.constant_rates, **look.constant_rates}
        self.pairing = paired(old.variables, look.variables, self._mapping, rates)
        self.notes += tuple(self._not_converted(old))
        self._recorder.start_from(dict(self._start(old, look)))
        self.training = self._recorder.train(
            input_fn,
            len(old.steps),
            old.batches,
            old.states(lambda state, number: self._converted(state, look)),
        )

    def _converted(
        self, values: Mapping[str, np.ndarray], look: TrainingRecord
    ) -> dict[str, np.ndarray]:
        """Returns values of the old program by the new paths."""
        converted = {}
        for pair in self.pairing.pairs:
            if pair.factor is None or pair.old not in values:
                continue
            value = np.asarray(values[pair.old])
            if pair.factor != 1:
                value = value * pair.factor
            like = np.asarray(look.initial[pair.new])
            converted[pair.new] = value.astype(like.dtype).reshape(like.shape)
        return converted

    def _not_converted(self, old: TrainingRecord) -> Iterator[str]:
        """Yields a sentence if some optimizer state has no counterpart."""
        pairs = [pair for pair in self.pairing.pairs if pair.factor is None]
        if not pairs:
            return
        yield (
            f"`{pairs[0].old}` and `{pairs[0].new}` are not compared, because the "
            "momentum of Keras's `SGD` contains the learning rate, which is not "
            "constant."
        )
        if any(np.any(old.initial[pair.old]) for pair in pairs):
            yield (
                "The new program starts with the momentum of its initial values. Use "
                "`optax.sgd`, which continues the old program's."
            )

    def _start(
        self, old: TrainingRecord, look: TrainingRecord
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the values of the old program by the new paths."""
        step = old.initial[GLOBAL_STEP]
        converted = self._converted(old.initial, look)
        for path, facts in look.variables.items():
            value = np.asarray(look.initial[path])
            if path in converted:
                value = converted[path]
            elif path == GLOBAL_STEP or _counts_steps(facts.is_slot, value):
                value = np.asarray(step).astype(value.dtype)
            elif path.rpartition("/")[2].startswith(_POWERS):
                # Of an optimizer of `tf.train` that begins with the power 1.
                value = np.power(value, step + 1, dtype=value.dtype)
            yield path, value.reshape(facts.shape)

    def evaluate(self, input_fn: InputFn, old: EvaluationRecord) -> EvaluationRecord:
        """Returns the metrics of the old program's batches."""
        return self._recorder.evaluate(input_fn, len(old.batches), old.batches)

    def predict(self, input_fn: InputFn, old: PredictionRecord) -> PredictionRecord:
        """Returns the predictions for the old program's batches."""
        return self._recorder.predict(input_fn, len(old.batches), old.batches)

    def export(self, export: Any) -> ExportRecord:
        """Returns the signatures of an export after training."""
        return self._recorder.export(export)


def _counts_steps(is_slot: bool, value: np.ndarray) -> bool:
    """Returns whether a variable is the optimizer's count of steps."""
    return is_slot and value.ndim == 0 and np.issubdtype(value.dtype, np.integer)


def can_run(context: EstimatorContext, mode: str) -> bool:
    """Returns whether an estimator has a batch size for a mode."""
    devices = context.mode_devices
    return not devices.use_tpu or devices.batch_sizes[mode] is not None


def values_of(checkpoint: PathLike | None) -> dict[str, np.ndarray] | None:
    """Returns the values of a checkpoint by path, or `None`."""
    if checkpoint is None:
        return None
    reader = loading.load_checkpoint(location.resolve(checkpoint))
    return {p: reader.get_tensor(p) for p in reader.get_variable_to_shape_map()}
