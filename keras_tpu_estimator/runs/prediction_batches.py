"""The forms of a batch in one `predict`, from padded input to predictions.

A `Padded` batch is copied to the devices as `Fed`, the devices run it as `Running`,
and its `Result` contains the `Predicted` rows.
"""

import collections
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.api.model_fn.outside_compilation import (
    with_host_tensors,
)
from keras_tpu_estimator.base.common.types import Features, PyTree
from keras_tpu_estimator.base.tracing.variables import ArraysByPath
from keras_tpu_estimator.engine.inputs.batch import pad
from keras_tpu_estimator.engine.inputs.pipeline import Pipeline
from keras_tpu_estimator.engine.inputs.stacking import Stack, shapes_and_dtypes
from keras_tpu_estimator.engine.program.additions import CHECKS
from keras_tpu_estimator.engine.program.steps import (
    HOST_CALL,
    PREDICTIONS,
    Outputs,
    Step,
)


@dataclasses.dataclass(frozen=True)
class Padded:
    """One batch to predict for.

    `stacked` is one step of features, padded to the batch size, whose labels are
    booleans that are true for padding. `examples` is the number of other rows.
    """

    stacked: Stack
    examples: int

    @property
    def features(self) -> Features:
        """Pytree of NumPy arrays of shape `[batch, ...]`."""
        return self.stacked.step(0).features

    @property
    def is_padding(self) -> np.ndarray:
        """Booleans of shape `[batch]`."""
        return np.asarray(self.stacked.labels[0])

    @functools.cached_property
    def shapes(self) -> Any:
        """A key that is equal for batches of one compiled program."""
        return shapes_and_dtypes(self.stacked.features)

    def space(self, room: int) -> int:
        """Returns the number of batches left in the stack that begins a run."""
        stack = in_place([self], room)
        return room if stack is None else room - self.stacked.first_row


def in_place(batches: Sequence[Padded], room: int) -> Features | None:
    """Returns the features of a stack of `room` batches if these lie there in order."""
    first = batches[0].stacked
    if first.memory is None or len(jax.tree.leaves(first.memory)[0]) != room:
        return None
    for row, padded in enumerate(batches, start=first.first_row):
        if padded.stacked.memory is not first.memory or padded.stacked.first_row != row:
            return None
    return first.memory[0]


@functools.lru_cache(maxsize=8)
def no_padding(steps: int, size: int) -> np.ndarray:
    """Returns booleans of shape `[steps, size]` that mark no row as padding."""
    is_padding = np.zeros((steps, size), bool)
    is_padding.flags.writeable = False
    return is_padding


class PaddedSteps:
    """The single steps of an input, padded to `size` examples if it is set.

    A batch without examples becomes a step with only padding, because the caller may
    wait for its result.
    """

    def __init__(self, pipeline: Pipeline, size: int | None):
        self._pipeline = pipeline
        self._size = size

    def next(self) -> Padded | None:
        """Returns the next step, or `None` at the end."""
        batch = self._pipeline.take(1)
        if batch is None:
            return None
        examples = batch.examples
        size = max(self._size or 1, examples)
        if examples == size:
            stacked = dataclasses.replace(batch, labels=no_padding(1, size))
            return Padded(stacked, examples)
        features, is_padding = pad(batch.step(0).features, size)
        features, is_padding = jax.tree.map(
            lambda leaf: leaf[None], (features, is_padding)
        )
        return Padded(Stack(features, is_padding, True), examples)


@dataclasses.dataclass(frozen=True)
class Predicted:
    """Predictions of one batch, whose readers remove padding.

    Attributes:
        predictions: An array or a dict of arrays. Arrays with one row for each
            example have no padding; others are unchanged from the devices.
        examples: The number of examples.
        size: The number of examples with padding. Defaults to `examples`.
    """

    predictions: PyTree
    examples: int
    size: int | None = None

    @property
    def by_name(self) -> dict[str, Any]:
        """The predictions as Keras's callbacks receive them."""
        rows = self.without_padding
        return rows if isinstance(rows, dict) else {"outputs": rows}

    @property
    def without_padding(self) -> PyTree:
        """The predictions without padding, also if each example has several rows."""
        count, predictions = self._rows, self.predictions
        if count is not None:
            predictions = jax.tree.map(lambda array: array[:count], predictions)
        # JAX sorts the keys of a dict, and keeps those of an `OrderedDict`.
        return dict(predictions) if isinstance(predictions, Mapping) else predictions

    def select(self, keys: Any) -> "Predicted":
        """Returns the predictions under some keys, or all for no keys."""
        if not keys:
            return self
        keys = [keys] if isinstance(keys, str) else list(keys)
        predictions = self.predictions
        if not isinstance(predictions, Mapping):
            raise ValueError(
                "With `predict_keys` predictions must be a dict. Received keys "
                f"{keys} and predictions of type {type(predictions).__name__}. "
                "Return a dict from model_fn."
            )
        selected = collections.OrderedDict(
            (key, value) for key, value in predictions.items() if key in keys
        )
        if not selected:
            raise ValueError(
                f"`predict_keys` must be among {sorted(predictions)}. Received: "
                f"{keys}. Pass some of these."
            )
        return dataclasses.replace(self, predictions=selected)

    def rows(self) -> Iterator[Any]:
        """Returns the predictions of single rows; examples may have several."""
        predictions, count = self.without_padding, self._rows
        if count is None:
            count = self.examples
        if not isinstance(predictions, Mapping):
            self._check_rows("predictions", predictions, count)
            return iter(predictions)
        for name, values in predictions.items():
            self._check_rows(name, values, count)
        if len(predictions) == 1:
            ((name, values),) = predictions.items()
            return ({name: value} for value in values)
        columns = zip(*predictions.values(), strict=True)
        return iter([dict(zip(predictions, row, strict=True)) for row in columns])

    def with_own_rows(self) -> "Predicted":
        """Returns the same predictions, with the number of rows as `examples`."""
        leaves = jax.tree.leaves(self.predictions)
        rows = next((len(leaf) for leaf in leaves if np.ndim(leaf)), 0)
        return dataclasses.replace(self, examples=rows, size=None)

    @property
    def _rows(self) -> int | None:
        """The number of rows of all examples, if each example has several."""
        lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(self.predictions)}
        size = self.examples if self.size is None else self.size
        if len(lengths) != 1 or not size or lengths == {()}:
            return None
        ((length,),) = lengths
        per_example, remainder = divmod(length, size)
        if per_example < 2 or remainder:
            return None
        return per_example * self.examples

    def _check_rows(self, name: str, values: Any, count: int) -> None:
        if np.shape(values)[:1] != (count,):
            raise ValueError(
                f"The prediction {name!r} must have one row for each of "
                f"{self.examples} examples, or all predictions must have the same "
                f"number of rows. Received shape {np.shape(values)}. Keep the "
                "batch as its first axis, exclude it with `predict_keys`, or pass "
                "yield_single_examples=False."
            )


@dataclasses.dataclass(frozen=True)
class Fed:
    """Some batches of equal shapes on the devices, from `put_one` or `put`.

    The program has `room` for that many batches, which are stacked if it is above 1.
    `first_row` is the index of the first batch in the stack.
    """

    batches: tuple[Padded, ...]
    step: Step
    data: PyTree
    room: int
    first_row: int = 0

    @property
    def steps(self) -> range:
        """The indices of the batches among the stacked ones."""
        return range(self.first_row, self.first_row + len(self.batches))


@dataclasses.dataclass(frozen=True)
class Result:
    """The results of one batch, with the tensors of a `host_call` as one step."""

    predicted: Predicted
    host_call: PyTree | None


@dataclasses.dataclass(frozen=True)
class Running:
    """Batches in a run of the devices, or the error that prevented it.

    Attributes:
        before: The values that earlier runs have assigned, by path.
        assigned: The values that this run assigns, by path.
        outputs: Predictions and the tensors of a `host_call`, stacked if the
            program has room for several batches.
        named: Other tensors of the last batch, by name.
    """

    fed: Fed
    before: ArraysByPath
    assigned: ArraysByPath
    outputs: Outputs
    named: Outputs
    error: Exception | None = None

    def begin_copy(self) -> None:
        """Starts copying the outputs to the host when they are complete."""
        for leaf in jax.tree.leaves(self.outputs):
            leaf.copy_to_host_async()

    @property
    def is_complete(self) -> bool:
        """Whether the devices have completed the run."""
        return all(leaf.is_ready() for leaf in jax.tree.leaves(self.outputs))

    def finish(self) -> list[Result]:
        """Waits for the predictions without padding, or raises the run's error."""
        if self.error is not None:
            raise self.error
        self.fed.step.additions.check(self.outputs.get(CHECKS, {}))
        outputs = {k: v for k, v in self.outputs.items() if k != CHECKS}
        stacked = jax.tree.map(np.asarray, outputs)
        if self.fed.room == 1:
            return [self._result(self.fed.batches[0], stacked)]
        return [
            self._result(
                # A copy does not keep the other batches in memory.
                padded,
                jax.tree.map(lambda rows, row=row: np.array(rows[row]), stacked),
            )
            for row, padded in zip(self.fed.steps, self.fed.batches, strict=True)
        ]

    def _result(self, padded: Padded, outputs: Outputs) -> Result:
        size = padded.stacked.labels.shape[1]

        def cut(array: np.ndarray) -> np.ndarray:
            has_rows = array.shape[:1] == (size,)
            return array[: padded.examples] if has_rows else array

        predictions = outputs[PREDICTIONS]
        if padded.examples != size:
            predictions = jax.tree.map(cut, predictions)
        predictions = with_host_tensors(predictions, finish=np.asarray)
        predictions = self.fed.step.additions.as_received(predictions)
        host_call = None
        if HOST_CALL in outputs:
            host_call = jax.tree.map(lambda a: a[None], outputs[HOST_CALL])
        return Result(Predicted(predictions, padded.examples, size), host_call)
