"""Cells of `tf.contrib.rnn` with one gate or without gates, and `NASCell`."""

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1.shims.resolving import resolve

_cells = resolve("nn.rnn_cell")


class _Cell(_cells.RNNCell):  # type: ignore[name-defined]
    """A cell whose state has as many numbers as its output."""

    def __init__(
        self,
        num_units: int,
        activation: Callable[[Any], Any] | None,
        reuse: Any,
        **options: Any,
    ):
        super().__init__(_reuse=reuse, **options)
        self._units, self._activation = num_units, activation or tf.tanh

    @property
    def state_size(self) -> Any:
        """The number of units."""
        return self._units

    @property
    def output_size(self) -> int:
        """The number of units."""
        return self._units


class UGRNNCell(_Cell):
    """A recurrent cell with one gate, which updates its state.

    Args:
        num_units: The number of units.
        initializer: The initializer of the kernel. Defaults to the scope's.
        forget_bias: A constant that is added to the gate. Defaults to 1.
        activation: The activation of the new state. Defaults to tanh.
        reuse: Whether the variables already exist.
    """

    def __init__(
        self,
        num_units: int,
        initializer: Any = None,
        forget_bias: float = 1.0,
        activation: Callable[[Any], Any] = tf.tanh,
        reuse: Any = None,
    ):
        super().__init__(num_units, activation, reuse)
        self._initializer, self._forget_bias = initializer, forget_bias

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`.
            state: `[batch, units]`.
        """
        joined = tf.concat([inputs, state], 1)
        size, dtype = 2 * self._units, joined.dtype
        kernel = tf.get_variable(
            "kernel", [joined.shape[1], size], dtype, self._initializer
        )
        bias = tf.get_variable("bias", [size], dtype, tf.zeros_initializer())
        gate, new = tf.split(tf.matmul(joined, kernel) + bias, 2, 1)
        gate = tf.sigmoid(gate + self._forget_bias)
        state = gate * state + (1 - gate) * self._activation(new)
        return state, state


class SRUCell(_Cell):
    """A simple recurrent unit, whose gates do not depend on its state.

    Args:
        num_units: The number of units.
        activation: The activation of the output. Defaults to tanh.
        reuse: Whether the variables already exist.
        name: The name of the layer.
        **kwargs: Options of the layer, such as `dtype`.
    """

    def __init__(
        self,
        num_units: int,
        activation: Callable[[Any], Any] | None = None,
        reuse: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(num_units, activation, reuse, name=name, **kwargs)

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`.
            state: `[batch, units]`.
        """
        units, dtype = self._units, inputs.dtype
        kernel = tf.get_variable("kernel", [inputs.shape[1], 4 * units], dtype)
        bias = tf.get_variable("bias", [2 * units], dtype, tf.zeros_initializer())
        new, gates, carried = tf.split(
            tf.matmul(inputs, kernel), [units, 2 * units, units], 1
        )
        forget, reset = tf.split(tf.sigmoid(gates + bias), 2, 1)
        state = forget * state + (1 - forget) * new
        output = reset * self._activation(state) + (1 - reset) * carried
        return output, state


class IndRNNCell(_Cell):
    """A recurrent cell whose units depend on their own state only.

    Args:
        num_units: The number of units.
        activation: The activation. Defaults to tanh.
        reuse: Whether the variables already exist.
        name: The name of the layer.
        dtype: The dtype of the variables.
    """

    def __init__(
        self,
        num_units: int,
        activation: Callable[[Any], Any] | None = None,
        reuse: Any = None,
        name: str | None = None,
        dtype: Any = None,
    ):
        super().__init__(num_units, activation, reuse, name=name, dtype=dtype)

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`.
            state: `[batch, units]`.
        """
        units, dtype = self._units, inputs.dtype
        kernel = tf.get_variable("kernel_w", [inputs.shape[1], units], dtype)
        of_state = tf.get_variable(
            "kernel_u", [1, units], dtype, tf.random_uniform_initializer(-1, 1)
        )
        bias = tf.get_variable("bias", [units], dtype, tf.zeros_initializer())
        output = self._activation(tf.matmul(inputs, kernel) + state * of_state + bias)
        return output, output


class NASCell(_cells.RNNCell):  # type: ignore[name-defined]
    """The recurrent cell that neural architecture search has found.

    Args:
        num_units: The number of units.
        num_proj: The size of the output. Defaults to the number of units.
        use_bias: Whether the gates have a bias. Defaults to `False`.
        reuse: Whether the variables already exist.
        **kwargs: Options of the layer, such as `name` and `dtype`.
    """

    def __init__(
        self,
        num_units: int,
        num_proj: int | None = None,
        use_bias: bool = False,
        reuse: Any = None,
        **kwargs: Any,
    ):
        super().__init__(_reuse=reuse, **kwargs)
        self._units, self._projected, self._has_bias = num_units, num_proj, use_bias

    @property
    def state_size(self) -> Any:
        """The sizes of the cell and of its output."""
        return _cells.LSTMStateTuple(self._units, self.output_size)

    @property
    def output_size(self) -> int:
        """The size of the output."""
        return self._units if self._projected is None else self._projected

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`.
            state: A pair of `[batch, units]` and `[batch, output size]`.
        """
        cell, output = state
        size, dtype = 8 * self._units, inputs.dtype
        kernels = {
            name: tf.get_variable(name, [rows, size], dtype)
            for name, rows in (
                ("recurrent_kernel", self.output_size),
                ("kernel", inputs.shape[1]),
            )
        }
        recurrent = tf.matmul(output, kernels["recurrent_kernel"])
        if self._has_bias:
            recurrent += tf.get_variable("bias", [size], dtype, tf.zeros_initializer())
        m = tf.split(recurrent, 8, 1)
        x = tf.split(tf.matmul(inputs, kernels["kernel"]), 8, 1)
        first = tf.tanh(tf.sigmoid(x[0] + m[0]) * tf.nn.relu(x[1] + m[1]))
        second = tf.tanh(tf.sigmoid(x[2] + m[2]) + tf.nn.relu(x[3] * m[3]))
        third = tf.tanh(tf.tanh(x[4] + m[4]) * tf.sigmoid(x[5] + m[5]))
        fourth = tf.sigmoid(tf.tanh(x[6] + m[6]) + tf.sigmoid(x[7] + m[7]))
        cell = tf.tanh(first + cell) * second
        output = tf.tanh(cell * tf.tanh(third + fourth))
        if self._projected is not None:
            projection = tf.get_variable(
                "projection_weights", [self._units, self._projected], dtype
            )
            output = tf.matmul(output, projection)
        return output, _cells.LSTMStateTuple(cell, output)
