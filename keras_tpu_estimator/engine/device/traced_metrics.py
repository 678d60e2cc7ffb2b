"""The metrics of a `metric_fn`, accumulated on the host.

`metric_fn` receives one step's tensors of all cores, as NumPy arrays or as
tensors of a program for the CPU, while the devices run the next loop.
"""

import contextlib
import copy
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.api.model_fn.spec_checks import (
    EVALUATION_NAMES,
    HostFunction,
    OwnNames,
    check_metric_ops,
    metric_value,
)
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.tracing import foreign_calls
from keras_tpu_estimator.base.tracing.capture import Captured
from keras_tpu_estimator.base.tracing.variables import ArraysByPath, VariableScope
from keras_tpu_estimator.base.upstream import keras_models, keras_state
from keras_tpu_estimator.engine.device.run_state import StepValues, scan_with_newest
from keras_tpu_estimator.engine.program.capturing import capture_over, enter
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP, VariableStore

_NEEDS_CONCRETE_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
)


class TracedMetrics:
    """The metrics of a `metric_fn`; see `HostMetrics`.

    Variables that `metric_fn` creates keep their values between steps, by path, as
    those of `model_fn` do. `metric_fn` is compiled for the CPU if it can be traced, and
    runs as Python if it needs NumPy values.
    """

    def __init__(self, host: HostFunction, own_names: OwnNames = EVALUATION_NAMES):
        self._host = host
        self.directions: dict[str, str] = {}
        self._own_names = own_names
        self._device = jax.local_devices(backend="cpu")[0]
        self._store = VariableStore()
        self._captured: dict[Any, Captured] = {}
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._is_traceable = True
        self._initial: ArraysByPath = {}
        self.reset()

    def another(self) -> "TracedMetrics":
        """Returns the same metrics with new counts, sharing compiled functions."""
        other = copy.copy(self)
        other.reset()
        return other

    def reset(self) -> None:
        """Resets the counts."""
        self._values: ArraysByPath = dict(self._initial)
        self._result: dict[str, Any] = {}
        self._resumed: ArraysByPath = {}

    def counts(self) -> dict[str, np.ndarray]:
        """Returns the values of the metrics' variables by path."""
        return {path: np.asarray(value) for path, value in self._values.items()}

    def resume(self, counts: Mapping[str, np.ndarray]) -> None:
        """Continues from the result of `counts`, even before variables exist."""
        self._resumed = jax.device_put(dict(counts), self._device)

    def update(self, steps: PyTree) -> None:
        """Adds steps, which are `StepValues` or arrays of shape `[steps, ...]`."""
        steps = jax.tree.map(StepValues.all_rows, steps)
        with jax.default_device(self._device):
            if self._is_traceable:
                with contextlib.suppress(*_NEEDS_CONCRETE_VALUES):
                    self._update_compiled(steps)
                    return
                self._is_traceable = False
            steps = jax.tree.map(np.asarray, steps)
            for step in range(len(jax.tree.leaves(steps)[0])):
                self._update_one(jax.tree.map(lambda a, i=step: a[i], steps))

    def names(self, steps: PyTree) -> tuple[str, ...]:
        """Returns the metrics' names, found by calling `metric_fn` with zeros."""
        other = self.another()
        other.update(
            jax.tree.map(lambda a: np.zeros((1, *a.shape[1:]), a.dtype), steps)
        )
        return tuple(other.result())

    def result(self) -> dict[str, Any]:
        """Returns the metrics' values by name, as NumPy values or bytes."""
        return jax.tree.map(_on_host, self._result)

    def _call(self, tensors: PyTree) -> dict[str, Any]:
        with foreign_calls.with_advice():
            returned = self._host.call(tensors)
        ops = check_metric_ops(returned, self._own_names)
        self.directions.update(keras_models.directions_of(ops))
        return {name: metric_value(metric) for name, metric in ops.items()}

    def _update_compiled(self, steps: PyTree) -> None:
        span = jax.tree.leaves(steps)[0].steps
        rows = jax.tree.map(lambda values: np.asarray(values.rows), steps)
        leaves, structure = jax.tree.flatten(rows)
        key = (structure, *((a.shape[1:], a.dtype) for a in leaves))
        if key not in self._captured:
            self._capture(key, jax.tree.map(lambda a: a[span.start], rows))
        self._values = {**self._initial, **self._values, **self._take_resumed()}
        paths = self._store.variables.keys() - {GLOBAL_STEP}
        self._values, self._result = self._compiled[key](
            {path: self._values[path] for path in paths},
            rows,
            np.array([span.start, span.stop], "int32"),
        )

    def _capture(self, key: Any, tensors: PyTree) -> None:
        captured = capture_over(self._store, self._call, tensors)
        enter(self._store, captured, tensors)
        initial = self._store.initial_values()
        # Copies of these metrics share this dict.
        self._initial.update({**initial, **self._initial})
        self._captured[key] = captured

        def step(
            values: ArraysByPath, tensors: PyTree
        ) -> tuple[ArraysByPath, PyTree, PyTree]:
            result, updates = captured(values, tensors)
            return {**values, **updates}, (), result

        def run(
            values: ArraysByPath, rows: PyTree, span: jax.Array
        ) -> tuple[ArraysByPath, PyTree]:
            values, _, result = scan_with_newest(step, values, rows, span)
            return values, result

        self._compiled[key] = jax.jit(run)

    def _take_resumed(self) -> ArraysByPath:
        resumed, self._resumed = self._resumed, {}
        return resumed

    def _update_one(self, tensors: PyTree) -> None:
        if self._resumed:
            # The first call makes the variables; their values are discarded.
            resumed = self._take_resumed()
            self._update_one(tensors)
            self._values = {**self._values, **resumed}
        variables = self._store.variables
        scope = VariableScope(variables, self._values, {})
        with keras_state.fresh_names(), scope:
            self._result = self._call(tensors)
        variables.update(scope.new)
        self._values = scope.values


def _on_host(value: Any) -> Any:
    # An array would truncate zeros at the end of a serialized message.
    return value if isinstance(value, bytes) else np.asarray(value)[()]
