"""The reader that turns the results of `input_fn` into stacked steps."""

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.base.common.tensorflow_session import hide_gpus
from keras_tpu_estimator.base.common.types import InputFn
from keras_tpu_estimator.engine.inputs.batch import Batch
from keras_tpu_estimator.engine.inputs.batch_source import BatchSource, SourceReader
from keras_tpu_estimator.engine.inputs.checks import BatchCheck
from keras_tpu_estimator.engine.inputs.deployment import Deployment, InputPlan
from keras_tpu_estimator.engine.inputs.packing import pack, unpack
from keras_tpu_estimator.engine.inputs.position import RestorePoint
from keras_tpu_estimator.engine.inputs.request import InputRequest, call_input_fn
from keras_tpu_estimator.engine.inputs.stacking import (
    Buffers,
    Stack,
    StackBuilder,
    Stacker,
    even_share,
)
from keras_tpu_estimator.engine.inputs.unbatched import joined_of_cores


class InputReader:
    """The steps of an input, from a restore point.

    The constructor makes the plan's calls of `input_fn`, and raises `TypeError` if the
    plan does not allow a returned value. `is_single` means that each call returned one
    batch.
    """

    def __init__(
        self,
        input_fn: InputFn,
        request: InputRequest,
        start: RestorePoint,
    ):
        self._request = request
        self._start = start
        hide_gpus()  # `input_fn` may make tensors.
        sources = [
            request.source_of(
                functools.partial(_call, input_fn, request, call), call.index
            )
            for call in request.plan.calls
        ]
        hide_gpus()  # `input_fn` may have imported TensorFlow.
        for source in sources:
            source.check(request.plan)
        # A state fits only a source that stacks the same number of batches.
        stacked = _stacked(request, sources) if start.states is None else start.stacked
        if stacked:
            sources = [source.in_stacks(stacked) for source in sources]
        self._stacked = sources[0].stacked
        self.is_single = all(source.is_single for source in sources)
        self._readers = [SourceReader(source, request.pair_of) for source in sources]
        self.steps = Stacker(
            self._pieces(sources), request.stack_size, request.capacity
        )

    def restore(self) -> None:
        """Sets the state of the restore point, or raises if it does not fit."""
        if self._start.states is None:
            return
        states = unpack(self._start.states)
        batches = self._start.steps * self._request.plan.batches_per_call
        for reader, state in zip(self._readers, states, strict=True):
            reader.open(state, batches)

    def restore_point(self) -> RestorePoint | None:
        """Returns a restore point before the next batch, if the input has a state."""
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

    def _pieces(self, sources: Sequence[BatchSource]) -> Iterator[Stack]:
        """Yields the steps of all calls, stacked by the fastest means."""
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
        return (Stack.from_batch(batch, 1, may_stay) for batch in batches)


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
    """Returns the number of batches that the source should stack, or 0."""
    is_undivided = len(sources) == request.plan.batches_per_call == 1
    may_stack = request.may_stack and request.axes.axes is None
    if not is_undivided or request.chunk == 1 or not may_stack:
        return 0
    size = request.plan.calls[0].batch_size
    return sources[0].stacked_for(request.chunk, size, request.stack_size)


def _checked(reader: SourceReader, request: InputRequest) -> Iterator[Batch]:
    """Yields the batches of one call, after checking them against the first."""
    check = request.check()
    step = 0
    for item in reader:
        batch = reader.batch(item)
        if request.axes.axes is not None:
            batch = request.axes.to_front(batch)
        shared = check(batch, step)
        if shared is None:
            reader.uncount(1)
            continue
        yield batch.sharing(shared) if shared else batch
        step += 1


def _repeated(batches: Iterator[Batch], request: InputRequest) -> Iterator[Stack]:
    """Yields the single batch forever, stacked once."""
    for batch in batches:
        one = Stack.from_batch(batch)
        size = one.step_bytes, request.stack_size
        steps = even_share(request.chunk, *size)
        capacity = even_share(request.capacity, *size)
        builder = StackBuilder(Buffers(), one, steps, capacity)
        builder.add(Stack.from_batch(batch, steps))
        yield from itertools.repeat(builder.built())


def _combined(
    parts: list[Iterator[Batch]], plan: InputPlan, may_stay: bool
) -> Iterator[Batch]:
    """Yields one batch for each step, from the batches of several calls."""
    per_call = plan.batches_per_call
    if not may_stay and per_call > 1:
        parts = [map(Batch.copied, part) for part in parts]
    while True:
        batches = [
            batch.tensors
            for part in parts
            for batch in itertools.islice(part, per_call)
        ]
        if not batches:
            return
        yield Batch(*joined_of_cores(batches, cores=per_call * len(parts)))


def batches_among(chunks: SourceReader, check: BatchCheck) -> Iterator[Stack]:
    """Yields the batches in items of a `StackedDataset`, checked in their order."""
    steps = 0
    for chunk in chunks:
        batches = []
        for tree in _of_one_size(chunk):
            batch = chunks.batch(tree)
            # TensorFlow does not change its tensors.
            stacked = Stack(batch.features, batch.labels, may_stay=True)
            if check.is_empty(stacked.step(0)):
                chunks.uncount(stacked.steps)
            else:
                batches.append(stacked)
        for stacked in batches:
            # Two batches of one size represent all of them.
            for index in range(min(stacked.steps, 2)):
                shared = check(stacked.step(index), steps + index) or ()
            steps += stacked.steps
            yield stacked.sharing(shared)


class _Stacked:
    """Some batches of one tensor, with concatenated rows."""

    def __init__(self, tensor: Any):
        if _is_ragged(tensor):
            self.rows = np.asarray(tensor.flat_values)
            self.splits = np.asarray(tensor.row_splits)
        else:
            stack = np.asarray(tensor)
            steps, size = stack.shape[:2]
            self.rows = stack.reshape(steps * size, *stack.shape[2:])
            self.splits = np.arange(steps + 1) * size

    def between(self, start: int, stop: int) -> np.ndarray:
        """Returns the batches from `start` to `stop`, which have one size."""
        first, last = self.splits[start], self.splits[stop]
        size = (last - first) // (stop - start)
        shape = (stop - start, size, *self.rows.shape[1:])
        return self.rows[first:last].reshape(shape)


def _of_one_size(chunk: Any) -> Iterator[Any]:
    """Yields the parts of a chunk with batches of one size, as pytrees."""
    if not any(_is_ragged(leaf) for leaf in jax.tree.leaves(chunk)):
        yield chunk
        return
    chunk = jax.tree.map(_Stacked, chunk)
    leaves = jax.tree.leaves(chunk)
    sizes = np.stack([np.diff(leaf.splits) for leaf in leaves])
    changes = 1 + np.flatnonzero(np.any(np.diff(sizes, axis=1), axis=0))
    bounds = [0, *changes.tolist(), sizes.shape[1]]
    for start, stop in itertools.pairwise(bounds):
        between = operator.methodcaller("between", start, stop)
        yield jax.tree.map(between, chunk)


def _is_ragged(tensor: Any) -> bool:
    return hasattr(tensor, "row_splits")
