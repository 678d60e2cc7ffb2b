"""From a user's `input_fn` to stacked steps on the host."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import Self

import jax
import numpy as np

from keras_tpu_estimator.inputs.axes import BatchAxes
from keras_tpu_estimator.inputs.batch import Batch
from keras_tpu_estimator.inputs.batch import Example
from keras_tpu_estimator.inputs.call import call_input_fn
from keras_tpu_estimator.inputs.checks import BatchCheck
from keras_tpu_estimator.inputs.chunks import can_be_stacked
from keras_tpu_estimator.inputs.chunks import chunks_of
from keras_tpu_estimator.inputs.chunks import step_bytes
from keras_tpu_estimator.inputs.deployment import InputPlan
from keras_tpu_estimator.inputs.forms import batches_of
from keras_tpu_estimator.inputs.forms import example_of
from keras_tpu_estimator.inputs.forms import hide_gpus
from keras_tpu_estimator.inputs.forms import is_dataset
from keras_tpu_estimator.inputs.forms import is_stream
from keras_tpu_estimator.inputs.sources import Source
from keras_tpu_estimator.inputs.sources import even_share
from keras_tpu_estimator.modes import ModeKeys


@dataclasses.dataclass(frozen=True)
class InputRequest:
    """What one call of `train`, `evaluate` or `predict` wants of its input.

    Attributes:
        mode: A value of `ModeKeys`.
        plan: The calls of `input_fn` to make.
        params_for: Returns the `params` of a call, from its additional ones.
        config: The run configuration, for an `input_fn` that asks for it.
        axes: Where the batch is in each tensor.
        repeat: Whether arrays, in place of a stream, are fed for ever.
        chunk: How many steps are wanted at once.
        checks_size: Whether batches must have the size asked for.
        max_bytes: How much is stacked, unless a single step is larger.
    """

    mode: str
    plan: InputPlan
    params_for: Callable[[dict[str, Any]], Any]
    config: Any = None
    axes: BatchAxes = BatchAxes()
    repeat: bool = True
    chunk: int = 1
    checks_size: bool = True
    max_bytes: float = math.inf

    def check(self) -> BatchCheck:
        """A new check of the batches of one call."""
        size = self.plan.calls[0].batch_size if self.checks_size else None
        return BatchCheck(size, is_padded=self.mode == ModeKeys.PREDICT)


class Pipeline:
    """The steps of one call, read from a user's `input_fn`.

    Args:
        input_fn: The user's function. It is called here, once for each of the
            plan's calls.
        request: What is wanted of it.

    Raises:
        TypeError: It returns a form that the plan does not allow.
    """

    def __init__(self, input_fn: Callable[..., Any], request: InputRequest):
        self._request = request
        self._step = 0
        hide_gpus()  # Before input_fn makes a tensor.
        returned = [self._call(input_fn, call) for call in request.plan.calls]
        hide_gpus()  # It may have been the first to need TensorFlow.
        for value in returned:
            _check_form(request, value)
        self._source = Source(_pieces(request, returned), request.max_bytes)

    def take(self, steps: int) -> Batch | None:
        """Up to so many steps, stacked; `None` at the end of the input.

        The steps of one batch have equal shapes: a smaller batch comes by
        itself.

        Raises:
            Exception: Errors of the user's pipeline come as themselves.
        """
        try:
            batch = self._source.take(steps)
        except Exception as error:
            error.add_note(
                f"This happened while input_fn was read in mode "
                f"{self._request.mode!r}, after {self._step} steps."
            )
            raise
        self._step += 0 if batch is None else batch.steps
        return batch

    def close(self) -> None:
        """Closes the user's generators."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _call(self, input_fn: Callable[..., Any], call: Any) -> Any:
        additional: dict[str, Any] = {}
        if call.batch_size is not None:
            additional["batch_size"] = call.batch_size
        context = self._request.plan.context(call)
        if context is not None:
            additional["context"] = context
        params = self._request.params_for(additional)
        return call_input_fn(
            input_fn, self._request.mode, params, self._request.config
        )


def _pieces(request: InputRequest, returned: list[Any]) -> Iterator[Batch]:
    """The steps of all calls, stacked by whoever is fastest."""
    plan = request.plan
    size = plan.calls[0].batch_size
    is_whole = len(returned) == plan.batches_per_call == 1
    if (
        is_whole
        and request.chunk > 1
        and request.axes.axes is None
        and is_dataset(returned[0])
        and can_be_stacked(returned[0])
    ):
        bytes_ = step_bytes(returned[0], size)
        steps = even_share(request.chunk, bytes_, request.max_bytes)
        return chunks_of(returned[0], steps, request.check())
    parts = [_checked(value, request) for value in returned]
    examples = _combined(parts, plan.batches_per_call)
    if request.repeat and not any(map(_has_many, returned)):
        return _repeated(examples, request.chunk)
    return (example.repeated(1) for example in examples)


def _checked(value: Any, request: InputRequest) -> Iterator[Example]:
    """The batches of one call, each checked against the first."""
    check = request.check()
    for step, batch in enumerate(batches_of(value)):
        example = request.axes.to_front(example_of(batch))
        check(example, step)
        yield example


def _repeated(examples: Iterator[Example], steps: int) -> Iterator[Batch]:
    """The only batch there is, for ever."""
    for example in examples:
        yield from itertools.repeat(example.repeated(steps))


def _combined(
    parts: list[Iterator[Example]], batches_per_call: int
) -> Iterator[Example]:
    """One batch a step out of those of several calls, in order."""
    if len(parts) == batches_per_call == 1:
        yield from parts[0]
        return
    while True:
        taken = [
            example
            for part in parts
            for _ in range(batches_per_call)
            if (example := next(part, None)) is not None
        ]
        if not taken:
            return
        features, labels = jax.tree.map(
            lambda *leaves: np.concatenate(leaves),
            *[(example.features, example.labels) for example in taken],
        )
        yield Example(features, labels)


def _has_many(value: Any) -> bool:
    return is_dataset(value) or is_stream(value)


def _check_form(request: InputRequest, value: Any) -> None:
    """Checks that the way of calling allows what was returned."""
    plan = request.plan
    if plan.per_shard and is_dataset(value):
        raise TypeError(
            "With PER_SHARD_V1 input_fn should return tensors for one core, "
            "not a Dataset. Received: "
            f"{type(value).__name__}. Use PER_HOST_V1 or PER_HOST_V2 in "
            "TPUConfig.per_host_input_for_training."
        )
    if plan.batches_per_call > 1 and not _has_many(value):
        raise TypeError(
            "With PER_HOST_V2 input_fn should return a Dataset or an iterable "
            f"of batches, one for each core. Received: {type(value).__name__}."
            " Use PER_HOST_V1 for tensors."
        )
    if request.mode == ModeKeys.PREDICT and request.axes.axes is not None:
        raise TypeError(
            "`batch_axis` should be None for prediction. Received: "
            f"{list(request.axes.axes)}."
        )
