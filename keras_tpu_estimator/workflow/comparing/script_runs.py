"""The calls of a script, recorded instead of executed.

Each program of a comparison runs in a separate process, because scripts of graphs
change the whole process. The new program's process receives the records of the old one.
"""

import abc
import dataclasses
import inspect
import os
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_tpu_estimator.base.common import sources
from keras_tpu_estimator.base.common.types import InputFn
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.runs.call_receiver import Predictions, running_calls
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.prediction_batches import Predicted
from keras_tpu_estimator.workflow.comparing.pairing import Pairing
from keras_tpu_estimator.workflow.comparing.programs import NewProgram, OldProgram
from keras_tpu_estimator.workflow.comparing.records import (
    EvaluationRecord,
    ExportRecord,
    PredictionRecord,
    TrainingRecord,
)


class EnoughError(BaseException):
    """Ends a script whose calls are all recorded; no library catches this class."""


@dataclasses.dataclass
class ScriptRecord:
    """The first call of each kind that a script makes.

    Those of the old program, except exports, are pairs: the second record is that of
    its run from values that differ by rounding.

    Attributes:
        pairing: The pairs of variables, in the record of the new program.
        notes: What the reader should know, one sentence each.
        ends_by_error: Whether the script raised an error after its training.
    """

    training: Any = None
    evaluation: Any = None
    prediction: Any = None
    export: ExportRecord | None = None
    pairing: Pairing = Pairing((), (), ())
    notes: tuple[str, ...] = ()
    ends_by_error: bool = False

    def save(self, path: str) -> None:
        """Writes the record for the process that started this one."""
        with open(path, "wb") as file:
            pickle.dump(self, file)

    @classmethod
    def load(cls, path: str) -> "ScriptRecord":
        """Reads the record of a process that this one started."""
        with open(path, "rb") as file:
            record: ScriptRecord = pickle.load(file)
        return record


class _Recording(abc.ABC):
    """A receiver of the calls of a script; see `CallReceiver`."""

    why_one_process = (
        "`compare` must not start other processes that use estimators, because it "
        "records only the calls of one process. Received a call in a process that the "
        "script has started. Compare the script of that process."
    )

    def __init__(self, directory: str, steps: int):
        self.record = ScriptRecord()
        self._directory = directory
        self._steps = steps
        self._last_step = steps
        self._context: EstimatorContext | None = None
        self._program: Any = None
        # The number of calls so far.
        self.calls = 0

    @property
    def has_trained(self) -> bool:
        """Whether the script has called `train`."""
        return self.record.training is not None

    def train(
        self,
        context: EstimatorContext,
        input_fn: InputFn,
        steps: int | None,
        validation: InputFn | None,
        validation_steps: int | None,
    ) -> None:
        """Records the first training, and ends the script at the second one."""
        del validation, validation_steps
        if self._context is not None:
            raise EnoughError
        self._context = context
        # The script's own loops go on as if it had trained to the end.
        self._last_step = steps or self._steps
        with running_calls():
            self._train(context, input_fn, min(steps or self._steps, self._steps))

    def evaluate(
        self, context: EstimatorContext, input_fn: InputFn, steps: int | None
    ) -> dict[str, Any]:
        """Records the first evaluation after training, and returns its metrics."""
        self._continue_with(context)
        count = min(steps or self._steps, self._steps)
        with running_calls():
            metrics = dict(self._evaluate(input_fn, count).metrics)
        return {**metrics, GLOBAL_STEP: np.int64(self._last_step)}

    def predict(self, context: EstimatorContext, input_fn: InputFn) -> Predictions:
        """Records the first prediction after training, and yields it."""
        self._continue_with(context)
        with running_calls():
            predictions = self._predict(input_fn, self._steps).predictions
        rows = len(next(iter(predictions.values())))
        yield Predicted(dict(predictions), rows)

    def export(self, context: EstimatorContext, export: Any) -> str:
        """Records the first export after training, and returns a path of it."""
        self._continue_with(context)
        if self.record.export is None:
            with running_calls():
                self.record.export = self._program.export(export)
        return os.path.join(os.fsdecode(export.base), "0")

    @property
    @abc.abstractmethod
    def may_end_by_error(self) -> bool:
        """Whether the records so far are complete if the script raises an error."""

    @abc.abstractmethod
    def _train(self, context: EstimatorContext, input_fn: InputFn, steps: int) -> None:
        """Records a training."""

    @abc.abstractmethod
    def _evaluate(self, input_fn: InputFn, steps: int) -> EvaluationRecord:
        """Records an evaluation."""

    @abc.abstractmethod
    def _predict(self, input_fn: InputFn, steps: int) -> PredictionRecord:
        """Records predictions."""

    @abc.abstractmethod
    def _program_of(self, context: EstimatorContext) -> Any:
        """Returns the program of an estimator, with the values after training."""

    def _continue_with(self, context: EstimatorContext) -> None:
        """Begins a call of the estimator that has trained, or of one like it.

        Scripts may have another estimator of the same function for evaluation.
        """
        self.calls += 1
        if self._context is None:
            raise ValueError(
                "The script must call `train` first, because a comparison starts from "
                "values of the old program. Received a script that evaluates or "
                "predicts first. Add `train`."
            )
        if context.model_fn is self._context.model_fn:
            return
        one, other = (inspect.unwrap(c.model_fn) for c in (context, self._context))
        if one is not other or context.model_dir != self._context.model_dir:
            raise EnoughError
        self._context = context
        self._program = self._program_of(context)


class OldRecording(_Recording):
    """The recorded calls of the old script.

    `initial` are the values to start from, or `None`.
    """

    def __init__(
        self, directory: str, steps: int, initial: Mapping[str, np.ndarray] | None
    ):
        super().__init__(directory, steps)
        self._initial = initial

    @property
    def may_end_by_error(self) -> bool:
        """Whether the records so far are complete if the script raises an error."""
        return True

    def _program_of(self, context: EstimatorContext) -> OldProgram:
        return OldProgram(context, self._directory)

    def _train(self, context: EstimatorContext, input_fn: InputFn, steps: int) -> None:
        self._program = self._program_of(context)
        self._program.train(input_fn, steps, self._initial)
        self.record.training = self._program.training, self._program.copies

    def _evaluate(self, input_fn: InputFn, steps: int) -> EvaluationRecord:
        records = self._program.evaluate(input_fn, steps)
        self.record.evaluation = self.record.evaluation or records
        return records[0]

    def _predict(self, input_fn: InputFn, steps: int) -> PredictionRecord:
        records = self._program.predict(input_fn, steps)
        self.record.prediction = self.record.prediction or records
        return records[0]


class NewRecording(_Recording):
    """The recorded calls of the new script, with the values and batches of the old."""

    def __init__(
        self,
        directory: str,
        steps: int,
        old: ScriptRecord,
        mapping: Mapping[str, str] | None,
    ):
        super().__init__(directory, steps)
        self._old = old
        self._mapping = mapping

    @property
    def may_end_by_error(self) -> bool:
        """Whether the records so far are complete if the script raises an error."""
        old, new = self._old, self.record
        calls = (old.evaluation, new.evaluation), (old.prediction, new.prediction)
        is_complete = all(later for earlier, later in calls if earlier is not None)
        return old.ends_by_error and is_complete

    def _program_of(self, context: EstimatorContext) -> NewProgram:
        return NewProgram(context, self._directory, self._mapping)

    def _train(self, context: EstimatorContext, input_fn: InputFn, steps: int) -> None:
        del steps
        training: TrainingRecord = self._old.training[0]
        self._program = self._program_of(context)
        self._program.train(input_fn, training)
        self.record.training = self._program.training
        self.record.pairing = self._program.pairing
        self.record.notes += self._program.notes

    def _evaluate(self, input_fn: InputFn, steps: int) -> EvaluationRecord:
        del steps
        if self._old.evaluation is None:
            raise EnoughError
        record = self._program.evaluate(input_fn, self._old.evaluation[0])
        self.record.evaluation = record
        return record

    def _predict(self, input_fn: InputFn, steps: int) -> PredictionRecord:
        del steps
        if self._old.prediction is None:
            raise EnoughError
        record = self._program.predict(input_fn, self._old.prediction[0])
        self.record.prediction = record
        return record


def record_path(directory: str, role: str) -> str:
    """Returns the path of the record of the old or the new script."""
    return os.path.join(directory, f"{role}.record")


def is_tensorflow_script(path: str) -> bool:
    """Returns whether a script imports TensorFlow but not this package."""
    imported = sources.imported_packages(path)
    return "tensorflow" in imported and "keras_tpu_estimator" not in imported
