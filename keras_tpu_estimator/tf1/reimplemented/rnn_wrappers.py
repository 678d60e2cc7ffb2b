"""Cells of `tf.contrib.rnn` that wrap another cell."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1.reimplemented.layers import linear
from keras_tpu_estimator.tf1.shims.resolving import resolve

_cells = resolve("nn.rnn_cell")


class _Wrapper(_cells.RNNCell):  # type: ignore[name-defined]
    """A cell with the state and the output of the cell that it wraps."""

    def __init__(self, cell: Any, reuse: Any = None):
        super().__init__(_reuse=reuse)
        self._cell = cell

    @property
    def state_size(self) -> Any:
        """The state size of the wrapped cell."""
        return self._cell.state_size

    @property
    def output_size(self) -> Any:
        """The output size of the wrapped cell."""
        return self._cell.output_size

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """Returns the initial state of the wrapped cell.

        Args:
            batch_size: The number of examples.
            dtype: The dtype of the state.
        """
        return self._cell.zero_state(batch_size, dtype)


class InputProjectionWrapper(_Wrapper):
    """A cell with a dense layer before it.

    Args:
        cell: The cell.
        num_proj: The number of inputs of the cell.
        activation: The activation of the layer. Defaults to none.
        input_size: Accepted; has no effect.
        reuse: Whether the variables already exist.
    """

    def __init__(
        self,
        cell: Any,
        num_proj: int,
        activation: Callable[[Any], Any] | None = None,
        input_size: Any = None,
        reuse: Any = None,
    ):
        del input_size
        super().__init__(cell, reuse)
        self._projected, self._activation = num_proj, activation

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`.
            state: The state of the cell.
        """
        projected = linear(inputs, self._projected, True)
        if self._activation:
            projected = self._activation(projected)
        result: tuple[Any, Any] = self._cell(projected, state)
        return result


class OutputProjectionWrapper(_Wrapper):
    """A cell with a dense layer after it.

    Args:
        cell: The cell.
        output_size: The size of the output.
        activation: The activation of the layer. Defaults to none.
        reuse: Whether the variables already exist.

    Raises:
        ValueError: `output_size` is not positive.
    """

    def __init__(
        self,
        cell: Any,
        output_size: int,
        activation: Callable[[Any], Any] | None = None,
        reuse: Any = None,
    ):
        super().__init__(cell, reuse)
        _check_positive(output_size=output_size)
        self._size, self._activation = output_size, activation

    @property
    def output_size(self) -> int:
        """The size of the output."""
        return self._size

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`.
            state: The state of the cell.
        """
        output, state = self._cell(inputs, state)
        output = linear(output, self._size, True)
        return self._activation(output) if self._activation else output, state


class EmbeddingWrapper(_Wrapper):
    """A cell whose inputs are ids, which it looks up in an embedding table.

    Args:
        cell: The cell.
        embedding_classes: The number of ids.
        embedding_size: The number of inputs of the cell.
        initializer: The initializer of the table. Defaults to that of the scope, or to
            uniform numbers with a variance of 1.
        reuse: Whether the variables already exist.

    Raises:
        ValueError: A number is not positive.
    """

    def __init__(
        self,
        cell: Any,
        embedding_classes: int,
        embedding_size: int,
        initializer: Any = None,
        reuse: Any = None,
    ):
        super().__init__(cell, reuse)
        _check_positive(
            embedding_classes=embedding_classes, embedding_size=embedding_size
        )
        self._shape = [embedding_classes, embedding_size]
        self._initializer = initializer

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: Integers of `[batch]` or `[batch, 1]`.
            state: The state of the cell.
        """
        bound = math.sqrt(3)
        initializer = (
            self._initializer
            or tf.get_variable_scope().initializer
            or tf.random_uniform_initializer(-bound, bound)
        )
        dtype = tf.nest.flatten(state)[0].dtype
        table = tf.get_variable("embedding", self._shape, dtype, initializer)
        ids = tf.reshape(inputs, [-1])
        result: tuple[Any, Any] = self._cell(tf.gather(table, ids), state)
        return result


def _check_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(
                f"`{name}` must be positive. Received: {number}. Pass at least 1."
            )


class HighwayWrapper(_Wrapper):
    """A cell with gates between its inputs and its output.

    Args:
        cell: A cell whose output has the size of its inputs.
        couple_carry_transform_gates: Whether one gate decides about both. Defaults to
            `True`.
        carry_bias_init: The initial bias of the gate of inputs. Defaults to 1.
    """

    def __init__(
        self,
        cell: Any,
        couple_carry_transform_gates: bool = True,
        carry_bias_init: float = 1.0,
    ):
        super().__init__(cell)
        self._has_one_gate = couple_carry_transform_gates
        self._bias = carry_bias_init

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
        """Runs one step. As in the original, the scope is that of the caller.

        Args:
            inputs: `[batch, size]`, or a pytree.
            state: The state of the cell.
            scope: The variable scope of the cell.
        """
        outputs, state = self._cell(inputs, state, scope=scope)
        return tf.nest.map_structure(self._gated, inputs, outputs), state

    def _gated(self, inputs: Any, output: Any) -> Any:
        carry = _gate(inputs, "carry", self._bias)
        if self._has_one_gate:
            transform = 1 - carry
        else:
            transform = _gate(inputs, "transform", -self._bias)
        return inputs * carry + output * transform


def _gate(inputs: Any, name: str, bias: float) -> Any:
    """Returns a gate between 0 and 1 for each number of the inputs."""
    size = inputs.shape[1]
    kernel = tf.get_variable(f"{name}_w", [size, size])
    offset = tf.get_variable(
        f"{name}_b", [size], initializer=tf.constant_initializer(bias)
    )
    return tf.sigmoid(tf.matmul(inputs, kernel) + offset)


class CompiledWrapper(_Wrapper):
    """A cell that TensorFlow 1 compiled with XLA, as all cells are compiled here.

    Args:
        cell: The cell.
        compile_stateful: Accepted; has no effect.
    """

    def __init__(self, cell: Any, compile_stateful: bool = False):
        del compile_stateful
        super().__init__(cell)

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
        """Runs one step of the cell.

        Args:
            inputs: `[batch, size]`.
            state: The state of the cell.
            scope: The variable scope of the cell.
        """
        result: tuple[Any, Any] = self._cell(inputs, state, scope=scope)
        return result


class AttentionCellWrapper(_Wrapper):
    """A cell that attends to its last outputs.

    Args:
        cell: The cell.
        attn_length: The number of outputs to attend to.
        attn_size: The size of an output. Defaults to that of the cell.
        attn_vec_size: The size of the compared vectors. Defaults to `attn_size`.
        input_size: The number of inputs of the cell. Defaults to the size of inputs.
        state_is_tuple: Must be `True`, the default.
        reuse: Whether the variables already exist.

    Raises:
        ValueError: `attn_length` is not positive, or `state_is_tuple` is `False`.
    """

    def __init__(
        self,
        cell: Any,
        attn_length: int,
        attn_size: int | None = None,
        attn_vec_size: int | None = None,
        input_size: int | None = None,
        state_is_tuple: bool = True,
        reuse: Any = None,
    ):
        super().__init__(cell, reuse)
        _check_positive(attn_length=attn_length)
        if not state_is_tuple:
            raise ValueError(
                "`state_is_tuple` must be True. Received: False. Leave it out: states "
                "are tuples."
            )
        self._length, self._inputs = attn_length, input_size
        self._size = attn_size or cell.output_size
        self._vector = attn_vec_size or self._size

    @property
    def state_size(self) -> Any:
        """The sizes of the cell's state, of the last result, and of all outputs."""
        return self._cell.state_size, self._size, self._size * self._length

    @property
    def output_size(self) -> int:
        """The size of an output."""
        return self._size

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """Returns zeros of the sizes in `state_size`.

        Args:
            batch_size: The number of examples.
            dtype: The dtype of the state.
        """
        return super(_Wrapper, self).zero_state(batch_size, dtype)

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`.
            state: A tuple of the sizes in `state_size`.
        """
        cell_state, attended, outputs = state
        outputs = tf.reshape(outputs, [-1, self._length, self._size])
        size = self._inputs or inputs.shape[1]
        joined = linear([inputs, attended], size, True)
        cell_output, cell_state = self._cell(joined, cell_state)
        query = tf.concat(tf.nest.flatten(cell_state), 1)
        attended = self._attended(query, outputs)
        with tf.variable_scope("attn_output_projection"):
            output = linear([cell_output, attended], self._size, True)
        outputs = tf.concat([outputs[:, 1:], output[:, None]], 1)
        outputs = tf.reshape(outputs, [-1, self._length * self._size])
        return output, (cell_state, attended, outputs)

    def _attended(self, query: Any, outputs: Any) -> Any:
        """Returns the mean of outputs, weighted by their fit to a query."""
        with tf.variable_scope("attention"):
            kernel = tf.get_variable("attn_w", [1, 1, self._size, self._vector])
            direction = tf.get_variable("attn_v", [self._vector])
            keys = tf.nn.conv2d(outputs[:, :, None], kernel, [1, 1, 1, 1], "SAME")
            compared = linear(query, self._vector, True)[:, None, None]
        scores = tf.reduce_sum(direction * tf.tanh(keys + compared), [2, 3])
        return tf.reduce_sum(tf.nn.softmax(scores)[:, :, None] * outputs, 1)
