"""The LSTM of `tf.contrib.rnn` with one gate for input and forgetting."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1.reimplemented.rnn_gated_cells import SizedCell, state_pair


def layer_normalized(values: Any, scope: str, gain: float, shift: float) -> Any:
    """Returns values whose last axis is normalized, with variables in a scope."""
    shape = values.shape[-1:]
    with tf.variable_scope(scope):
        gamma, beta = (
            tf.get_variable(name, shape, values.dtype, tf.constant_initializer(start))
            for name, start in (("gamma", gain), ("beta", shift))
        )
    mean, variance = tf.nn.moments(values, [-1], keep_dims=True)
    return tf.nn.batch_normalization(values, mean, variance, beta, gamma, 1e-12)


def sharded_variable(name: str, shape: Sequence[int], dtype: Any, shards: int) -> Any:
    """Returns a tensor of several variables, each with some of the rows."""
    rows = shape[0]
    if not 1 <= shards <= rows:
        raise ValueError(
            f"The number of shards must be 1 to {rows}, the rows of {name!r}. "
            f"Received: {shards}. Omit it."
        )
    sizes = [rows // shards + (n < rows % shards) for n in range(shards)]
    parts = [
        tf.get_variable(f"{name}_{n}", [size, *shape[1:]], dtype)
        for n, size in enumerate(sizes)
    ]
    return parts[0] if shards == 1 else tf.concat(parts, 0)


def clipped(values: Any, most: float | None) -> Any:
    """Returns values within a limit, if there is one."""
    return values if most is None else tf.clip_by_value(values, -most, most)


class CoupledInputForgetGateLSTMCell(SizedCell):
    """An LSTM whose input gate is one minus its forget gate.

    Args:
        num_units: The number of units.
        use_peepholes: Whether gates depend on the cell. Defaults to `False`.
        initializer: Accepted; has no effect, as in TensorFlow 1.
        num_proj: The size of the output. Defaults to the number of units.
        proj_clip: The limit to which a projected output is clipped. Defaults to none.
        num_unit_shards: The number of variables that the kernel is split into.
            Defaults to 1.
        num_proj_shards: The same for the projection.
        forget_bias: A constant that is added to the forget gate. Defaults to 1.
        state_is_tuple: Whether the state is a pair. Defaults to `True`.
        activation: The activation of the cell. Defaults to tanh.
        reuse: Whether the variables already exist.
        layer_norm: Whether gates and cell are normalized. Defaults to `False`.
        norm_gain: The initial scale of normalized values. Defaults to 1.
        norm_shift: The initial offset of normalized values. Defaults to 0.
    """

    def __init__(
        self,
        num_units: int,
        use_peepholes: bool = False,
        initializer: Any = None,
        num_proj: int | None = None,
        proj_clip: float | None = None,
        num_unit_shards: int = 1,
        num_proj_shards: int = 1,
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: Callable[[Any], Any] = tf.tanh,
        reuse: Any = None,
        layer_norm: bool = False,
        norm_gain: float = 1.0,
        norm_shift: float = 0.0,
    ):
        del initializer
        size = num_proj or num_units
        state = state_pair(num_units, size) if state_is_tuple else num_units + size
        super().__init__(state, size, reuse)
        self._units, self._has_peepholes = num_units, use_peepholes
        self._projected, self._clip = num_proj, proj_clip
        self._shards = num_unit_shards, num_proj_shards
        self._forget_bias, self._is_pair = forget_bias, state_is_tuple
        self._activation, self._is_normed = activation, layer_norm
        self._norm_starts = norm_gain, norm_shift

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`.
            state: A pair of `[batch, units]` and `[batch, output size]`, or both
                concatenated.
        """
        units, dtype = self._units, inputs.dtype
        if not self._is_pair:
            state = tf.split(state, [units, self.output_size], 1)
        cell, output = state
        joined = tf.concat([inputs, output], 1)
        shape = [joined.shape[1], 3 * units]
        gates = tf.matmul(joined, sharded_variable("W", shape, dtype, self._shards[0]))
        bias = tf.get_variable("B", [3 * units], dtype, tf.zeros_initializer())
        if not self._is_normed:
            gates += bias
        new, forget, out = (
            self._norm(gate, name)
            for gate, name in zip(
                tf.split(gates, 3, 1), ("transform", "forget", "output"), strict=True
            )
        )
        forget += self._forget_bias
        if self._has_peepholes:
            diagonals = [
                tf.get_variable(name, [units], dtype)
                for name in ("W_F_diag", "W_O_diag")
            ]
            forget += diagonals[0] * cell
        forget = tf.sigmoid(forget)
        cell = forget * cell + (1 - forget) * self._activation(new)
        cell = self._norm(cell, "state")
        if self._has_peepholes:
            out += diagonals[1] * cell
        output = self._projection(tf.sigmoid(out) * self._activation(cell))
        if self._is_pair:
            return output, state_pair(cell, output)
        return output, tf.concat([cell, output], 1)

    def _norm(self, values: Any, scope: str) -> Any:
        if not self._is_normed:
            return values
        return layer_normalized(values, scope, *self._norm_starts)

    def _projection(self, output: Any) -> Any:
        if self._projected is None:
            return output
        shape = [self._units, self._projected]
        kernel = sharded_variable("W_P", shape, output.dtype, self._shards[1])
        return clipped(tf.matmul(output, kernel), self._clip)
