"""What the calls of `input_fn` return, as stacked steps."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from keras_tpu_estimator.engine.inputs.batch import Batch, StackedSteps
from keras_tpu_estimator.engine.inputs.batch_source import BatchSource, SourceReader
from keras_tpu_estimator.engine.inputs.chunks import batches_among
from keras_tpu_estimator.engine.inputs.context import Deployment
from keras_tpu_estimator.engine.inputs.deployment import InputPlan
from keras_tpu_estimator.engine.inputs.packing import pack, unpack
from keras_tpu_estimator.engine.inputs.position import RestorePoint
from keras_tpu_estimator.engine.inputs.request import InputRequest, call_input_fn
from keras_tpu_estimator.engine.inputs.stacking import (
    Buffers,
    Stack,
    Stacker,
    even_share,
)
from keras_tpu_estimator.engine.inputs.unbatched import joined_of_cores
from keras_tpu_estimator.ground.base.tensorflow_gpus import hide_gpus
from keras_tpu_estimator.ground.base.types import InputFn


class InputReader:
    """The steps of an input, from a restore point on.

    Args:
        input_fn: The user's function. It is called here, once for each of the
            plan's calls.

    Attributes:
        is_single: Whether each call returned one batch.

    Raises:
        TypeError: It returns what the plan does not allow.
    """

    def __init__(
        self,
        input_fn: InputFn,
        request: InputRequest,
        start: RestorePoint,
    ):
        self._request = request
        self._start = start
        hide_gpus()  # Before input_fn makes a tensor.
        sources = [
            request.source_of(
                functools.partial(_call, input_fn, request, call), call.index
            )
            for call in request.plan.calls
        ]
        hide_gpus()  # It may have been the first to need TensorFlow.
        for source in sources:
            source.check(request.plan)
        # A state fits only what reads as many batches at once as before.
        stacked = _stacked(request, sources) if start.states is None else start.stacked
        if stacked:
            sources = [source.in_stacks(stacked) for source in sources]
        self._stacked = sources[0].stacked
        self.is_single = all(source.is_single for source in sources)
        self._readers = [SourceReader(source, request.pair_of) for source in sources]
        self.steps = Stacker(self._pieces(sources), request.stack_size, request.room)

    def restore(self) -> None:
        """Brings the input into the state of the restore point.

        Raises:
            Exception: The state does not fit the input.
        """
        if self._start.states is None:
            return
        states = unpack(self._start.states)
        batches = self._start.steps * self._request.plan.batches_per_call
        for reader, state in zip(self._readers, states, strict=True):
            reader.open(state, batches)

    def restore_point(self) -> RestorePoint | None:
        """A restore point at what is read next, if the input has a state."""
        plan = self._request.plan
        read = {reader.batches for reader in self._readers}
        states = [reader.state() for reader in self._readers]
        if None in states or len(read) > 1:
            return None
        steps = read.pop() // plan.batches_per_call
        return RestorePoint(steps, self._stacked, pack(states))

    def close(self) -> None:
        """Closes the user's generators."""
        self.steps.close()
        for reader in self._readers:
            reader.close()

    def _pieces(self, sources: Sequence[BatchSource]) -> Iterator[StackedSteps]:
        """The steps of all calls, stacked by whoever is fastest."""
        request = self._request
        if self._stacked:
            return batches_among(self._readers[0], request.check())
        may_stay = all(source.may_stay for source in sources)
        parts = [_checked(reader, request) for reader in self._readers]
        if request.plan.is_per_core:
            batches = _combined(parts, request.plan, may_stay)
            may_stay = True
        else:
            (batches,) = parts
        if request.repeat and all(source.is_single for source in sources):
            for source in sources:
                source.check_repeated()
            return _repeated(batches, request)
        return (batch.repeated(1, may_stay) for batch in batches)


def _call(input_fn: InputFn, request: InputRequest, call: Deployment) -> Any:
    additional: dict[str, Any] = {}
    if call.batch_size is not None:
        additional["batch_size"] = call.batch_size
    context = request.plan.context(call)
    if context is not None:
        additional["context"] = context
    params = request.params_for(additional)
    return call_input_fn(input_fn, request.mode, params, request.config)


def _stacked(request: InputRequest, sources: Sequence[BatchSource]) -> int:
    """How many batches the input is to stack by itself; 0 for none."""
    is_whole = len(sources) == request.plan.batches_per_call == 1
    if not is_whole or request.chunk == 1 or request.axes.axes is not None:
        return 0
    size = request.plan.calls[0].batch_size
    return sources[0].stacked_for(request.chunk, size, request.stack_size)


def _checked(reader: SourceReader, request: InputRequest) -> Iterator[Batch]:
    """The batches of one call, each checked against the first."""
    check = request.check()
    step = 0
    for item in reader:
        moved = request.axes.to_front(reader.batch(item))
        if check.is_empty(moved):
            reader.leave_out(1)
            continue
        yield moved.sharing(check(moved, step))
        step += 1


def _repeated(
    batches: Iterator[Batch], request: InputRequest
) -> Iterator[StackedSteps]:
    """The only batch there is, for ever, stacked once."""
    for batch in batches:
        one = batch.repeated(1)
        size = one.step_bytes, request.stack_size
        steps = even_share(request.chunk, *size)
        stack = Stack(Buffers(), one, steps, even_share(request.room, *size))
        stack.add(batch.repeated(steps))
        yield from itertools.repeat(stack.stacked())


def _combined(
    parts: list[Iterator[Batch]], plan: InputPlan, may_stay: bool
) -> Iterator[Batch]:
    """One batch a step out of those of several calls, in order."""
    each = plan.batches_per_call
    if not may_stay and each > 1:
        parts = [map(Batch.copied, part) for part in parts]
    while True:
        taken = [
            (batch.features, batch.labels)
            for part in parts
            for batch in itertools.islice(part, each)
        ]
        if not taken:
            return
        yield Batch(*joined_of_cores(taken, cores=each * len(parts)))
