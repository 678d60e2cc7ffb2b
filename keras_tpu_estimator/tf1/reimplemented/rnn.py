"""LSTMs and loops of `tf.contrib.rnn`, with their original variables."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1.reimplemented.rnn_coupled_gates import layer_normalized
from keras_tpu_estimator.tf1.shims.resolving import resolve

_cells = resolve("nn.rnn_cell")
# The base class of cells that are layers, which has no public name.
LayerRNNCell: Any = _cells.BasicRNNCell.__bases__[0]


class LayerNormBasicLSTMCell(_cells.RNNCell):  # type: ignore[name-defined]
    """An LSTM with normalized gates, and dropout of new cell values.

    Args:
        num_units: The number of units.
        forget_bias: A constant that is added to the forget gate. Defaults to 1.
        input_size: Accepted; has no effect.
        activation: The activation of the cell. Defaults to tanh.
        layer_norm: Whether to normalize gates. Defaults to `True`.
        norm_gain: The initial gain. Defaults to 1.
        norm_shift: The initial shift. Defaults to 0.
        dropout_keep_prob: The fraction to keep. Defaults to 1.
        dropout_prob_seed: The seed of the dropout.
        reuse: Whether the variables already exist.
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        input_size: Any = None,
        activation: Callable[[Any], Any] = tf.tanh,
        layer_norm: bool = True,
        norm_gain: float = 1.0,
        norm_shift: float = 0.0,
        dropout_keep_prob: Any = 1.0,
        dropout_prob_seed: int | None = None,
        reuse: Any = None,
    ):
        del input_size
        super().__init__(_reuse=reuse)
        self._units, self._forget_bias = num_units, forget_bias
        self._activation, self._is_normed = activation, layer_norm
        self._gain, self._shift = norm_gain, norm_shift
        self._keep_prob, self._seed = dropout_keep_prob, dropout_prob_seed

    @property
    def state_size(self) -> Any:
        """The sizes of the cell and of its output."""
        return _cells.LSTMStateTuple(self._units, self._units)

    @property
    def output_size(self) -> int:
        """The number of units."""
        return self._units

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`.
            state: A pair of `[batch, units]`.
        """
        cell, output = state
        joined = tf.concat([inputs, output], 1)
        size, dtype = 4 * self._units, joined.dtype
        kernel = tf.get_variable("kernel", [joined.shape[1], size], dtype)
        gates = tf.matmul(joined, kernel)
        if not self._is_normed:
            # As in the original, the scope's initializer also sets the bias.
            gates += tf.get_variable("bias", [size], dtype)
        names = ("input", "transform", "forget", "output")
        i, j, f, o = (
            self._norm(gate, name)
            for gate, name in zip(tf.split(gates, 4, 1), names, strict=True)
        )
        new = self._activation(j)
        if not isinstance(self._keep_prob, float) or self._keep_prob < 1:
            new = tf.nn.dropout(new, rate=1 - self._keep_prob, seed=self._seed)
        cell = cell * tf.sigmoid(f + self._forget_bias) + tf.sigmoid(i) * new
        cell = self._norm(cell, "state")
        output = self._activation(cell) * tf.sigmoid(o)
        return output, _cells.LSTMStateTuple(cell, output)

    def _norm(self, values: Any, scope: str) -> Any:
        if not self._is_normed:
            return values
        return layer_normalized(values, scope, self._gain, self._shift)


class LSTMBlockCell(_cells.LSTMCell):  # type: ignore[name-defined]
    """An LSTM that was one operation in TensorFlow 1, and is fused by XLA.

    Args:
        num_units: The number of units.
        forget_bias: A constant that is added to the forget gate. Defaults to 1.
        cell_clip: The limit to which the cell is clipped. Defaults to none.
        use_peephole: Whether gates depend on the cell. Defaults to `False`.
        dtype: The dtype of the variables.
        reuse: Whether the variables already exist.
        name: The name of the layer. Defaults to 'lstm_cell'.
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        dtype: Any = None,
        reuse: Any = None,
        name: str = "lstm_cell",
        _scope: Any = None,
    ):
        super().__init__(
            num_units,
            use_peepholes=use_peephole,
            cell_clip=cell_clip,
            forget_bias=forget_bias,
            reuse=reuse,
            name=name,
            dtype=dtype,
            _scope=_scope,
        )

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step. Like the original op, its gradient ignores clipping."""
        cell, hidden = state
        joined = tf.concat([inputs, hidden], 1)
        gates = tf.nn.bias_add(tf.matmul(joined, self._kernel), self._bias)
        i, j, f, o = tf.split(gates, 4, axis=1)
        if self._use_peepholes:
            i += self._w_i_diag * cell
            f += self._w_f_diag * cell
        remembered = tf.sigmoid(f + self._forget_bias) * cell
        cell = remembered + tf.sigmoid(i) * tf.tanh(j)
        if self._cell_clip is not None:
            most = self._cell_clip
            cell = tf.grad_pass_through(
                lambda value: tf.clip_by_value(value, -most, most)
            )(cell)
        if self._use_peepholes:
            o += self._w_o_diag * cell
        hidden = tf.sigmoid(o) * tf.tanh(cell)
        return hidden, _cells.LSTMStateTuple(cell, hidden)


def stack_bidirectional_dynamic_rnn(
    cells_fw: Sequence[Any],
    cells_bw: Sequence[Any],
    inputs: Any,
    initial_states_fw: Sequence[Any] | None = None,
    initial_states_bw: Sequence[Any] | None = None,
    dtype: Any = None,
    sequence_length: Any = None,
    parallel_iterations: int | None = None,
    time_major: bool = False,
    scope: Any = None,
) -> tuple[Any, Any, Any]:
    """Stacks bidirectional layers, each on the outputs of both directions below.

    Args:
        cells_fw: The forward cells of each layer.
        cells_bw: The backward cells of each layer.
        inputs: `[batch, time, size]`, or time first.
        initial_states_fw: The initial forward states of each layer.
        initial_states_bw: The initial backward states of each layer.
        dtype: The dtype of the states.
        sequence_length: `[batch]`. Defaults to all time steps.
        parallel_iterations: Accepted; has no effect.
        time_major: Whether time is the first axis. Defaults to `False`.
        scope: The variable scope. Defaults to 'stack_bidirectional_rnn'.

    Returns:
        The outputs of the last layer, and the last states of all layers, forward and
        backward.

    Raises:
        ValueError: The numbers of forward and backward cells differ.
    """
    del parallel_iterations
    _check_layers(cells_fw, cells_bw)
    outputs, states = inputs, []
    layers = _layers(cells_fw, cells_bw, initial_states_fw, initial_states_bw)
    with tf.variable_scope(scope or "stack_bidirectional_rnn"):
        for number, (forward, backward, state_fw, state_bw) in enumerate(layers):
            with tf.variable_scope(f"cell_{number}"):
                directions, last = tf.nn.bidirectional_dynamic_rnn(
                    forward,
                    backward,
                    outputs,
                    sequence_length,
                    state_fw,
                    state_bw,
                    dtype,
                    time_major=time_major,
                )
                outputs = tf.concat(directions, 2)
                states.append(last)
    forward_states, backward_states = zip(*states, strict=True)
    return outputs, forward_states, backward_states


def stack_bidirectional_rnn(
    cells_fw: Sequence[Any],
    cells_bw: Sequence[Any],
    inputs: Sequence[Any],
    initial_states_fw: Sequence[Any] | None = None,
    initial_states_bw: Sequence[Any] | None = None,
    dtype: Any = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[Any, Any, Any]:
    """Stacks bidirectional layers as `stack_bidirectional_dynamic_rnn`, unrolled.

    Args:
        cells_fw: As there, like all others except `inputs`.
        cells_bw: See there.
        inputs: A list of `[batch, size]`, one for each time step.
        initial_states_fw: See there.
        initial_states_bw: See there.
        dtype: See there.
        sequence_length: See there.
        scope: See there.

    Raises:
        ValueError: The numbers of forward and backward cells differ.
    """
    _check_layers(cells_fw, cells_bw)
    outputs, states = inputs, []
    layers = _layers(cells_fw, cells_bw, initial_states_fw, initial_states_bw)
    with tf.variable_scope(scope or "stack_bidirectional_rnn"):
        for number, (forward, backward, state_fw, state_bw) in enumerate(layers):
            with tf.variable_scope(f"cell_{number}") as layer_scope:
                outputs, *last = tf.nn.static_bidirectional_rnn(
                    forward,
                    backward,
                    outputs,
                    state_fw,
                    state_bw,
                    dtype,
                    sequence_length,
                    scope=layer_scope,
                )
                states.append(last)
    forward_states, backward_states = zip(*states, strict=True)
    return outputs, forward_states, backward_states


def _check_layers(cells_fw: Sequence[Any], cells_bw: Sequence[Any]) -> None:
    if not cells_fw or len(cells_fw) != len(cells_bw):
        raise ValueError(
            "`cells_fw` and `cells_bw` must have a cell for each layer. "
            f"Received {len(cells_fw)} and {len(cells_bw)}."
        )


def _layers(
    cells_fw: Sequence[Any],
    cells_bw: Sequence[Any],
    initial_states_fw: Sequence[Any] | None,
    initial_states_bw: Sequence[Any] | None,
) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yields the cells and the initial states of both directions of each layer."""
    nothing = [None] * len(cells_fw)
    return zip(
        cells_fw,
        cells_bw,
        initial_states_fw or nothing,
        initial_states_bw or nothing,
        strict=True,
    )


def transpose_batch_time(x: Any) -> Any:
    """Returns a tensor with its first two axes exchanged.

    Args:
        x: A tensor with at least two axes.
    """
    axes = list(range(x.shape.rank))
    return tf.transpose(x, [1, 0, *axes[2:]])


def best_effort_input_batch_size(flat_input: Sequence[Any]) -> Any:
    """Returns the batch size of steps, as a number if one of them has a static one.

    Args:
        flat_input: A list of `[time, batch, ...]`.

    Raises:
        ValueError: A tensor has less than two axes.
    """
    for steps in flat_input:
        shape = steps.shape
        if shape.rank is None:
            continue
        if shape.rank < 2:
            raise ValueError(
                "`flat_input` must have tensors with the axes time and batch. "
                f"Received: {steps}. Add the missing axis."
            )
        if shape[1] is not None:
            return shape[1]
    return tf.shape(flat_input[0])[1]
