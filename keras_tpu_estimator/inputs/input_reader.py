"""What the calls of `input_fn` return, as stacked steps."""

import itertools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.inputs.batch import Batch
from keras_tpu_estimator.inputs.batch import Example
from keras_tpu_estimator.inputs.call import call_input_fn
from keras_tpu_estimator.inputs.chunks import batches_among
from keras_tpu_estimator.inputs.chunks import can_be_stacked
from keras_tpu_estimator.inputs.chunks import step_bytes
from keras_tpu_estimator.inputs.forms import batch_of
from keras_tpu_estimator.inputs.forms import check_dense
from keras_tpu_estimator.inputs.forms import example_of
from keras_tpu_estimator.inputs.forms import hide_gpus
from keras_tpu_estimator.inputs.forms import is_dataset
from keras_tpu_estimator.inputs.forms import is_stream
from keras_tpu_estimator.inputs.packing import pack
from keras_tpu_estimator.inputs.packing import unpack
from keras_tpu_estimator.inputs.position import RestorePoint
from keras_tpu_estimator.inputs.request import InputRequest
from keras_tpu_estimator.inputs.sources import Source
from keras_tpu_estimator.inputs.sources import even_share
from keras_tpu_estimator.inputs.stream import Stream


class InputReader:
    """The steps of an input, from a restore point on.

    Args:
        input_fn: The user's function. It is called here, once for each of the
            plan's calls.
        request: What is wanted of it.
        start: Where to start.

    Attributes:
        source: The steps.

    Raises:
        TypeError: It returns a form that the plan does not allow.
    """

    def __init__(
        self,
        input_fn: Callable[..., Any],
        request: InputRequest,
        start: RestorePoint,
    ):
        self._request = request
        self._start = start
        hide_gpus()  # Before input_fn makes a tensor.
        returned = [
            _call(input_fn, request, call) for call in request.plan.calls
        ]
        hide_gpus()  # It may have been the first to need TensorFlow.
        for value in returned:
            _check_form(request, value)
        # A state fits only what reads as many batches at once as before.
        self._stacked = (
            _stacked(request, returned)
            if start.states is None
            else start.stacked
        )
        self._streams = [Stream(value, self._stacked) for value in returned]
        pieces = _pieces(request, returned, self._streams, self._stacked)
        self.source = Source(pieces, request.max_bytes)

    def restore(self) -> None:
        """Brings the input into the state of the restore point.

        Raises:
            Exception: The state does not fit the input.
        """
        if self._start.states is None:
            return
        states = unpack(self._start.states)
        batches = self._start.steps * self._request.plan.batches_per_call
        for stream, state in zip(self._streams, states, strict=True):
            stream.open(state, batches)

    def restore_point(self) -> RestorePoint | None:
        """A restore point at what is read next, if the input has a state."""
        plan = self._request.plan
        if plan.calls[0].total > len(self._streams):
            return None  # Other hosts have states of their own.
        read = {stream.batches for stream in self._streams}
        states = [stream.state() for stream in self._streams]
        if None in states or len(read) > 1:
            return None
        steps = read.pop() // plan.batches_per_call
        return RestorePoint(steps, self._stacked, pack(states))

    def close(self) -> None:
        """Closes the user's generators."""
        self.source.close()
        for stream in self._streams:
            stream.close()


def _call(
    input_fn: Callable[..., Any], request: InputRequest, call: Any
) -> Any:
    additional: dict[str, Any] = {}
    if call.batch_size is not None:
        additional["batch_size"] = call.batch_size
    context = request.plan.context(call)
    if context is not None:
        additional["context"] = context
    params = request.params_for(additional)
    return call_input_fn(input_fn, request.mode, params, request.config)


def _stacked(request: InputRequest, returned: list[Any]) -> int:
    """How many batches `tf.data` is to stack; 0 for none."""
    plan = request.plan
    is_whole = len(returned) == plan.batches_per_call == 1
    if not (
        is_whole
        and request.chunk > 1
        and request.axes.axes is None
        and is_dataset(returned[0])
        and can_be_stacked(returned[0])
    ):
        return 0
    bytes_ = step_bytes(returned[0], plan.calls[0].batch_size)
    return even_share(request.chunk, bytes_, request.max_bytes)


def _pieces(
    request: InputRequest,
    returned: list[Any],
    streams: list[Stream],
    stacked: int,
) -> Iterator[Batch]:
    """The steps of all calls, stacked by whoever is fastest."""
    if stacked:
        return batches_among(streams[0], request.check())
    parts = [
        _checked(value, stream, request)
        for value, stream in zip(returned, streams, strict=True)
    ]
    examples = _combined(parts, request.plan.batches_per_call)
    if request.repeat and not any(map(_has_many, returned)):
        return _repeated(examples, request.chunk)
    return (example.repeated(1) for example in examples)


def _checked(
    value: Any, stream: Stream, request: InputRequest
) -> Iterator[Example]:
    """The batches of one call, each checked against the first."""
    if is_dataset(value):
        check_dense(value.element_spec)
    check = request.check()
    for step, item in enumerate(stream):
        example = request.axes.to_front(example_of(batch_of(value, item)))
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
