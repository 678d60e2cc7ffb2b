"""Batches that the devices are predicting for, and the results of them."""

import dataclasses

import jax
import numpy as np

from keras_tpu_estimator.engine.program.outputs import check_not_truncated
from keras_tpu_estimator.engine.program.steps import CUT, Outputs, Step
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.ground.tracing.variables import ArraysByPath
from keras_tpu_estimator.runs.padded_steps import Padded
from keras_tpu_estimator.runs.predicted import Predicted
from keras_tpu_estimator.spec.model_fn.outside_compilation import (
    with_host_tensors,
)


@dataclasses.dataclass(frozen=True)
class Fed:
    """Some batches of equal shapes, as the devices take them.

    Attributes:
        step: The program's step for them.
        data: What the device loop's `put_one` or `put` has returned.
        room: How many batches the program has room for. One batch comes by
            itself, and several are stacked.
        place: The place of the first batch among the stacked ones. Defaults to
            0.
    """

    batches: tuple[Padded, ...]
    step: Step
    data: Nest
    room: int
    place: int = 0

    @property
    def steps(self) -> range:
        """The places of the batches among the stacked ones."""
        return range(self.place, self.place + len(self.batches))


@dataclasses.dataclass(frozen=True)
class Result:
    """The results of one batch.

    Attributes:
        host_call: The tensors of a `host_call`, stacked as one step, or `None`.
    """

    predicted: Predicted
    host_call: Nest | None


@dataclasses.dataclass(frozen=True)
class Running:
    """Batches that the devices are at work on.

    Attributes:
        before: What the runs before it have assigned, by path.
        assigned: What it assigns, by path.
        outputs: Predictions and, if there are any, the tensors of a
            `host_call`; stacked if there is room for several batches.
        named: Other tensors by name, of the last batch.
        error: Why the devices could not begin, or `None`.
    """

    fed: Fed
    before: ArraysByPath
    assigned: ArraysByPath
    outputs: Outputs
    named: Outputs
    error: Exception | None = None

    def begin_copy(self) -> None:
        """Has the outputs copied to the host as soon as they are made."""
        for leaf in jax.tree.leaves(self.outputs):
            leaf.copy_to_host_async()

    @property
    def is_made(self) -> bool:
        """Whether the devices have nothing more to do for it."""
        return all(leaf.is_ready() for leaf in jax.tree.leaves(self.outputs))

    def finish(self) -> list[Result]:
        """Waits for the predictions; returns them without padding.

        Raises:
            CutIntegersError: They have integers that do not fit.
            Exception: The devices could not begin.
        """
        if self.error is not None:
            raise self.error
        check_not_truncated(self.outputs.get(CUT, {}))
        outputs = {k: v for k, v in self.outputs.items() if k != CUT}
        whole = jax.tree.map(np.asarray, outputs)
        if self.fed.room == 1:
            return [self._result(self.fed.batches[0], whole)]
        return [
            self._result(
                # A copy, so that who keeps one of them does not keep them all.
                padded,
                jax.tree.map(lambda rows, at=place: np.array(rows[at]), whole),
            )
            for place, padded in zip(self.fed.steps, self.fed.batches, strict=True)
        ]

    def _result(self, padded: Padded, outputs: Outputs) -> Result:
        size = padded.stacked.labels.shape[1]

        def cut(array: np.ndarray) -> np.ndarray:
            has_rows = array.shape[:1] == (size,)
            return array[: padded.examples] if has_rows else array

        predictions = outputs["predictions"]
        if padded.examples != size:
            predictions = jax.tree.map(cut, predictions)
        predictions = with_host_tensors(predictions, finish=np.asarray)
        host_call = None
        if "host_call" in outputs:
            host_call = jax.tree.map(lambda a: a[None], outputs["host_call"])
        return Result(Predicted(predictions, padded.examples, size), host_call)
