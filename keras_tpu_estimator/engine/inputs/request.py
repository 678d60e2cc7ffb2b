"""The request of a call for input, and the kinds of values that `input_fn` returns.

The state of a generator, data loader or other iterable is saved by one of these
protocols, of the iterator or of the object it iterates over:

* `state_dict()` and `load_state_dict(state)`, as in PyTorch's
  `StatefulDataLoader`.
* `get_state()` and `set_state(state)`, as in Grain.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.params import argument_names, copied
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import InputFn
from keras_tpu_estimator.engine.inputs.batch import PairOf, pair_of
from keras_tpu_estimator.engine.inputs.batch_source import Arrays, BatchSource
from keras_tpu_estimator.engine.inputs.checks import BatchCheck
from keras_tpu_estimator.engine.inputs.datasets import Dataset, in_dense_tensors
from keras_tpu_estimator.engine.inputs.deployment import InputPlan
from keras_tpu_estimator.engine.inputs.input_shapes import BatchAxes, InputShapes
from keras_tpu_estimator.engine.inputs.other_libraries import (
    allow_worker_processes,
    check_yields_batches,
)
from keras_tpu_estimator.engine.inputs.stacking import StackSize

_METHODS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))


class Stream(BatchSource):
    """An iterable of batches, which may reuse their arrays."""

    may_stay = False

    def check(self, plan: InputPlan) -> None:
        """Accepts every plan."""

    def items(self, state: dict[str, Any] | None = None) -> Iterator[Any]:
        """Returns an iterator over the batches, from a state if there is one."""
        if state is None:
            return iter(self._value)
        ((save, saved),) = state.items()
        load = dict(_METHODS)[save]
        if hasattr(self._value, load):
            # The state of an iterable takes effect when iteration begins.
            getattr(self._value, load)(saved)
            return iter(self._value)
        items = iter(self._value)
        getattr(items, load)(saved)
        return items

    def state_of(self, items: Iterator[Any]) -> dict[str, Any] | None:
        """Returns the name of the protocol and the state."""
        for owner in (self._value, items):
            for save, load in _METHODS:
                if hasattr(owner, save) and hasattr(owner, load):
                    return {save: getattr(owner, save)()}
        return None


def source_of(value: Any) -> BatchSource:
    """Returns the source for a dataset, an iterable of batches, or one batch."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(value, tensorflow.data.Dataset):
        return Dataset(in_dense_tensors(value))
    check_yields_batches(value)
    allow_worker_processes(value)
    if isinstance(value, Mapping | tuple | list | str | bytes):
        return Arrays(value)
    if hasattr(value, "__iter__") and not hasattr(value, "dtype"):
        return Stream(value)
    return Arrays(value)


def source_of_call(call: Callable[[], Any], number: int) -> BatchSource:
    """Returns the source for the result of a call, regardless of its number."""
    del number
    return source_of(call())


@dataclasses.dataclass(frozen=True)
class InputRequest:
    """The request of one call of `train`, `evaluate` or `predict` for input.

    Attributes:
        plan: The calls of `input_fn` to make.
        params_for: Returns the `params` of a call, from its additional ones.
        config: The run configuration, for an `input_fn` with this argument.
        repeat: Whether a source of one batch repeats forever.
        chunk: The number of steps to read at once.
        capacity: The number of steps that a device program has room for, if they
            are small.
        checks_size: Whether batches must have the requested size.
        state_max_bytes: The maximum number of bytes of a saved iterator state.
        source_of: Makes a call, and returns the source for its result and
            number.
        may_stack: Whether a source may stack batches before `pair_of`.
    """

    mode: str
    plan: InputPlan
    params_for: Callable[[dict[str, Any]], Any]
    config: Any = None
    axes: BatchAxes = BatchAxes()
    repeat: bool = True
    chunk: int = 1
    capacity: int = 1
    checks_size: bool = True
    stack_size: StackSize = StackSize()
    state_max_bytes: int | None = None
    shapes: InputShapes = dataclasses.field(default_factory=InputShapes)
    source_of: Callable[[Callable[[], Any], int], BatchSource] = source_of_call
    pair_of: PairOf = pair_of
    may_stack: bool = True

    def check(self) -> BatchCheck:
        """Returns a new check for the batches of one call."""
        return BatchCheck(
            self.plan.calls[0].batch_size,
            is_any_size=not self.checks_size,
            is_padded=self.mode == ModeKeys.PREDICT,
            may_share=not self.plan.is_split and self.axes.axes is None,
            shapes=self.shapes,
            warns=self.mode == ModeKeys.TRAIN,
        )


def call_input_fn(input_fn: InputFn, mode: str, params: Any, config: Any) -> Any:
    """Calls an `input_fn` with `params` and the other arguments that it declares."""
    if not callable(input_fn):
        raise TypeError(
            "`input_fn` must be a function of params. Received: "
            f"{shown(input_fn)}. Pass the "
            "function itself, without calling it."
        )
    names = {*argument_names(input_fn)}
    if "params" not in names:
        raise ValueError(
            "`input_fn` must take an argument `params`, because TPUEstimator "
            "passes the batch size in params['batch_size']. Received a function "
            f"of {sorted(names)}. Add the argument."
        )
    available = {"mode": mode, "config": config, "input_context": None}
    kwargs = {name: copied(value) for name, value in available.items() if name in names}
    return input_fn(params=params, **kwargs)
