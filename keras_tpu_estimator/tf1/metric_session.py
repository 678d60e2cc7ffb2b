"""A TF1 `metric_fn` in a TensorFlow session on the host."""

import itertools
from collections.abc import Callable
from typing import Any
from typing import Self

import jax
import keras
import numpy as np

from keras_tpu_estimator.base.types import Nest
from keras_tpu_estimator.model_fn.spec_checks import HostFunction
from keras_tpu_estimator.tf1.graph import as_in_tf2

# Of so many evaluations at once the variables are kept.
_KEPT = 4


class MetricFn:
    """A `metric_fn` of `tf.metrics`, as a function of NumPy arrays.

    Each call counts one batch. What was counted is kept in the session of an
    evaluation, which the one Keras variable that it makes tells from others.

    Args:
        function: The user's function.
    """

    def __init__(self, function: Callable[..., Any], dtypes: Nest):
        self._function = function
        self._dtypes = dtypes
        self._evaluations: dict[int, _Evaluation] = {}
        self._numbers = itertools.count(1)

    @classmethod
    def of(cls, host: HostFunction) -> tuple[Self, Nest]:
        """The function for the host, and what stands for its tensors there.

        Args:
            host: The user's function, and tensors of the graph.
        """
        # The devices have no 64-bit numbers; the function was to get them.
        dtypes = jax.tree.map(
            lambda tensor: np.dtype(tensor.dtype.as_numpy_dtype), host.tensors
        )
        return cls(host.function, dtypes), dtypes

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Counts a batch.

        Returns:
            The values so far by name, in pairs as `tf.metrics` has them.
        """
        # Under a trace this fails, and the caller goes on without one.
        tensors: Nest = jax.tree.map(np.asarray, kwargs or list(args))
        tensors = jax.tree.map(
            lambda array, dtype: array.astype(dtype), tensors, self._dtypes
        )
        number = keras.Variable(
            0, dtype="int32", trainable=False, name="tf1_evaluation"
        )
        if not int(number.value):
            new = next(self._numbers)
            self._evaluations[new] = _Evaluation(self._function)
            self._evaluations.pop(new - _KEPT, None)
            number.assign(new)
        values = self._evaluations[int(number.value)].count(tensors)
        return {name: (value, None) for name, value in values.items()}


class _Evaluation:
    """What one evaluation has counted, over batches of any size."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._sessions: dict[Any, _MetricSession] = {}
        self._last: _MetricSession | None = None

    def count(self, tensors: Nest) -> dict[str, Any]:
        leaves, structure = jax.tree.flatten(tensors)
        key = (structure, *(leaf.shape for leaf in leaves))
        if key not in self._sessions:
            self._sessions[key] = _MetricSession(self._function, tensors)
        session = self._sessions[key]
        if self._last not in (None, session):
            session.load(self._last.values())
        self._last = session
        return session.count(leaves)


class _MetricSession:
    """A graph of a `metric_fn` for one size of batches, and its session."""

    def __init__(self, function: Callable[..., Any], tensors: Nest):
        import tensorflow as tf

        v1 = tf.compat.v1
        graph = tf.Graph()
        with as_in_tf2(), graph.as_default():
            inputs = jax.tree.map(
                lambda a: v1.placeholder(a.dtype, a.shape), tensors
            )
            called = (
                function(**inputs)
                if isinstance(inputs, dict)
                else function(*inputs)
            )
            pairs = _checked(called)
            self._variables = {
                variable.op.name: variable
                for variable in (*v1.local_variables(), *v1.global_variables())
            }
            initializers = [v.initializer for v in self._variables.values()]
            tables = v1.tables_initializer()
        self._session = v1.Session(graph=graph)
        self._session.run([*initializers, tables])
        self._names = list(pairs)
        self._update = self._session.make_callable(
            [update for _, update in pairs.values()], jax.tree.leaves(inputs)
        )
        self._read = self._session.make_callable(
            [value for value, _ in pairs.values()], jax.tree.leaves(inputs)
        )

    def count(self, leaves: list[np.ndarray]) -> dict[str, Any]:
        """Counts a batch, and returns the values of the metrics."""
        self._update(*leaves)
        return dict(zip(self._names, self._read(*leaves), strict=True))

    def values(self) -> dict[str, np.ndarray]:
        """The values of the variables by name."""
        values: dict[str, np.ndarray] = self._session.run(self._variables)
        return values

    def load(self, values: dict[str, np.ndarray]) -> None:
        """Gives the variables values."""
        variables = self._variables
        self._session.run(
            [variables[name].initializer for name in values],
            {
                variables[name].initializer.inputs[1]: value
                for name, value in values.items()
            },
        )


def _checked(metrics: Any) -> dict[str, tuple[Any, Any]]:
    """The pairs that a `metric_fn` returned."""
    if not isinstance(metrics, dict):
        raise TypeError(
            "metric_fn should return a dict from names to metrics. Received: "
            f"{metrics!r} of type {type(metrics).__name__}"
        )
    for name, pair in metrics.items():
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(
                f"The metric {name!r} should be a (value, update_op) pair, as "
                "tf.compat.v1.metrics makes them. Received: "
                f"{pair!r} of type {type(pair).__name__}"
            )
    return metrics
