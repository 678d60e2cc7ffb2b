"""Cells of `tf.contrib.rnn` with several gates."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1.reimplemented.layers import linear
from keras_tpu_estimator.tf1.shims.resolving import resolve

_cells = resolve("nn.rnn_cell")


class SizedCell(_cells.RNNCell):  # type: ignore[name-defined]
    """A cell with a state and an output of fixed sizes."""

    def __init__(self, state: Any, output: Any, reuse: Any = None, **options: Any):
        super().__init__(_reuse=reuse, **options)
        self._sizes = state, output

    @property
    def state_size(self) -> Any:
        """The sizes of the state."""
        return self._sizes[0]

    @property
    def output_size(self) -> Any:
        """The size of the output."""
        return self._sizes[1]


def state_pair(cell: Any, output: Any) -> Any:
    """Returns the state of an LSTM."""
    return _cells.LSTMStateTuple(cell, output)


class GRUBlockCell(SizedCell):
    """A GRU that was one operation in TensorFlow 1, and is fused by XLA.

    Args:
        num_units: The number of units.
        cell_size: An old name of `num_units`.
        reuse: Whether the variables already exist.
        name: The name of the layer. Defaults to 'gru_cell'.

    Raises:
        ValueError: Neither or both of `num_units` and `cell_size` are set.
    """

    _GATES, _CANDIDATE = ("w_ru", "b_ru"), ("w_c", "b_c")

    def __init__(
        self,
        num_units: int | None = None,
        cell_size: int | None = None,
        reuse: Any = None,
        name: str = "gru_cell",
    ):
        if (num_units is None) == (cell_size is None):
            raise ValueError(
                "`num_units` must be an integer. Received: "
                f"num_units={num_units}, cell_size={cell_size}. Pass one of them."
            )
        units = num_units or cell_size
        super().__init__(units, units, reuse, name=name)

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`.
            state: `[batch, units]`.
        """
        units = self.output_size
        gates = _dense(tf.concat([inputs, state], 1), 2 * units, self._GATES, 1.0)
        reset, update = tf.split(tf.sigmoid(gates), 2, 1)
        joined = tf.concat([inputs, reset * state], 1)
        candidate = tf.tanh(_dense(joined, units, self._CANDIDATE, 0.0))
        state = update * state + (1 - update) * candidate
        return state, state


class GRUBlockCellV2(GRUBlockCell):
    """A `GRUBlockCell` whose variables have the names of a `GRUCell`."""

    _GATES = "gates/kernel", "gates/bias"
    _CANDIDATE = "candidate/kernel", "candidate/bias"


def _dense(inputs: Any, size: int, names: tuple[str, str], bias: float) -> Any:
    """Applies a dense layer with a kernel and a bias of these names."""
    kernel = tf.get_variable(names[0], [inputs.shape[1], size], inputs.dtype)
    offset = tf.get_variable(
        names[1], [size], inputs.dtype, tf.constant_initializer(bias)
    )
    return tf.matmul(inputs, kernel) + offset


class IndyGRUCell(SizedCell):
    """A GRU whose units depend on their own state only.

    Args:
        num_units: The number of units.
        activation: The activation. Defaults to tanh.
        reuse: Whether the variables already exist.
        kernel_initializer: The initializer of the kernels of inputs.
        bias_initializer: The initializer of the biases. Defaults to ones for gates, and
            to zeros for the new state.
        name: The name of the layer.
        dtype: The dtype of the variables.
    """

    def __init__(
        self,
        num_units: int,
        activation: Callable[[Any], Any] | None = None,
        reuse: Any = None,
        kernel_initializer: Any = None,
        bias_initializer: Any = None,
        **options: Any,
    ):
        super().__init__(num_units, num_units, reuse, **options)
        self._activation = activation or tf.tanh
        self._initializers = kernel_initializer, bias_initializer

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`.
            state: `[batch, units]`.
        """
        gates = _independent(
            inputs, state, 2, ("gates/", "_w"), self._initializers, 1.0
        )
        reset, update = tf.split(tf.sigmoid(gates), 2, 1)
        candidate = _independent(
            inputs, reset * state, 1, ("candidate/", ""), self._initializers, 0.0
        )
        state = update * state + (1 - update) * self._activation(candidate)
        return state, state


class IndyLSTMCell(SizedCell):
    """An LSTM whose units depend on their own output only.

    Args:
        num_units: The number of units.
        forget_bias: A constant that is added to the forget gate. Defaults to 1.
        activation: The activation. Defaults to tanh.
        reuse: Whether the variables already exist.
        kernel_initializer: The initializer of the kernel of inputs.
        bias_initializer: The initializer of the bias. Defaults to zeros.
        name: The name of the layer.
        dtype: The dtype of the variables.
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        activation: Callable[[Any], Any] | None = None,
        reuse: Any = None,
        kernel_initializer: Any = None,
        bias_initializer: Any = None,
        **options: Any,
    ):
        super().__init__(state_pair(num_units, num_units), num_units, reuse, **options)
        self._forget_bias, self._activation = forget_bias, activation or tf.tanh
        self._initializers = kernel_initializer, bias_initializer

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`.
            state: A pair of `[batch, units]`.
        """
        cell, output = state
        gates = _independent(inputs, output, 4, ("", "_w"), self._initializers, 0.0)
        i, j, f, o = tf.split(gates, 4, 1)
        cell = cell * tf.sigmoid(f + self._forget_bias)
        cell += tf.sigmoid(i) * self._activation(j)
        output = self._activation(cell) * tf.sigmoid(o)
        return output, state_pair(cell, output)


def _independent(
    inputs: Any,
    state: Any,
    count: int,
    name_parts: tuple[str, str],
    initializers: tuple[Any, Any],
    bias: float,
) -> Any:
    """Returns `count` numbers for each unit from the inputs and its own state.

    Names of variables start with the first part. The kernel's ends with the second.
    """
    prefix, ending = name_parts
    size, dtype = count * state.shape[1], inputs.dtype
    kernel = tf.get_variable(
        f"{prefix}kernel{ending}", [inputs.shape[1], size], dtype, initializers[0]
    )
    weights = tf.get_variable(
        f"{prefix}kernel_u", [1, size], dtype, tf.random_uniform_initializer(-1, 1)
    )
    bias_initializer = initializers[1] or tf.constant_initializer(bias)
    offset = tf.get_variable(f"{prefix}bias", [size], dtype, bias_initializer)
    return tf.matmul(inputs, kernel) + tf.tile(state, [1, count]) * weights + offset


class GLSTMCell(SizedCell):
    """An LSTM whose inputs and units are divided into groups.

    Args:
        num_units: The number of units.
        initializer: The initializer of the kernels. Defaults to the scope's.
        num_proj: The size of the output. Defaults to the number of units.
        number_of_groups: The number of groups. Defaults to 1.
        forget_bias: A constant that is added to the forget gate. Defaults to 1.
        activation: The activation of the output. Defaults to tanh.
        reuse: Whether the variables already exist.

    Raises:
        ValueError: Units or outputs cannot be divided into these groups.
    """

    def __init__(
        self,
        num_units: int,
        initializer: Any = None,
        num_proj: int | None = None,
        number_of_groups: int = 1,
        forget_bias: float = 1.0,
        activation: Callable[[Any], Any] = tf.tanh,
        reuse: Any = None,
    ):
        output = num_proj or num_units
        super().__init__(state_pair(num_units, output), output, reuse)
        if num_units % number_of_groups or output % number_of_groups:
            raise ValueError(
                "`num_units` and `num_proj` must be multiples of `number_of_groups`. "
                f"Received: {num_units} and {num_proj} for {number_of_groups} groups. "
                "Use other numbers."
            )
        self._units, self._groups, self._projected = (
            num_units,
            number_of_groups,
            num_proj,
        )
        self._initializer, self._forget_bias = initializer, forget_bias
        self._activation = activation

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`, with a multiple of the groups as size.
            state: A pair of `[batch, units]` and `[batch, output size]`.
        """
        cell, output = state
        scope = tf.get_variable_scope()
        with tf.variable_scope(scope, initializer=self._initializer):
            parts = [self._gates(n, inputs, output) for n in range(self._groups)]
            i, j, f, o = (
                tf.concat(gates, 1) + zeros(f"bias_{name}", self._units, inputs.dtype)
                for name, gates in zip("ijfo", zip(*parts, strict=True), strict=True)
            )
        cell = cell * tf.sigmoid(f + self._forget_bias) + tf.sigmoid(i) * tf.tanh(j)
        output = tf.sigmoid(o) * self._activation(cell)
        if self._projected is not None:
            with tf.variable_scope("projection"):
                output = linear(output, self._projected, False)
        return output, state_pair(cell, output)

    def _gates(self, group: int, inputs: Any, output: Any) -> list[Any]:
        """Returns the four gates of a group."""
        parts = [
            tf.split(tensor, self._groups, 1)[group] for tensor in (inputs, output)
        ]
        with tf.variable_scope(f"group{group}"):
            size = 4 * self._units // self._groups
            gates = linear(tf.concat(parts, 1), size, False)
        result: list[Any] = tf.split(gates, 4, 1)
        return result


def zeros(name: str, size: int, dtype: Any) -> Any:
    """Returns a variable of zeros, such as a bias."""
    return tf.get_variable(name, [size], dtype, tf.zeros_initializer())


class IntersectionRNNCell(SizedCell):
    """A cell with gates for its state and for its output.

    Args:
        num_units: The number of units.
        num_in_proj: If it is set, inputs of another size are projected. Defaults to
            none.
        initializer: The initializer of the kernels. Defaults to the scope's.
        forget_bias: A constant that is added to the gates. Defaults to 1.
        y_activation: The activation of the output. Defaults to relu.
        reuse: Whether the variables already exist.
    """

    def __init__(
        self,
        num_units: int,
        num_in_proj: int | None = None,
        initializer: Any = None,
        forget_bias: float = 1.0,
        y_activation: Callable[[Any], Any] = tf.nn.relu,
        reuse: Any = None,
    ):
        super().__init__(num_units, num_units, reuse)
        self._units, self._projected = num_units, num_in_proj
        self._initializer, self._forget_bias = initializer, forget_bias
        self._activation = y_activation

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`.
            state: `[batch, units]`.

        Raises:
            ValueError: Inputs have another size, and are not projected.
        """
        scope = tf.get_variable_scope()
        with tf.variable_scope(scope, initializer=self._initializer):
            if inputs.shape[1] != self._units:
                inputs = self._projection(inputs)
            numbers = linear(tf.concat([inputs, state], 1), 4 * self._units, True)
        gate, new, output_gate, output = tf.split(numbers, 4, 1)
        gate = tf.sigmoid(gate + self._forget_bias)
        output_gate = tf.sigmoid(output_gate + self._forget_bias)
        state = gate * state + (1 - gate) * tf.tanh(new)
        output = output_gate * inputs + (1 - output_gate) * self._activation(output)
        return output, state

    def _projection(self, inputs: Any) -> Any:
        if not self._projected:
            raise ValueError(
                f"The inputs must have {self._units} columns, as many as units. "
                f"Received: {inputs.shape[1]}. Set `num_in_proj` to `num_units`."
            )
        with tf.variable_scope("in_projection"):
            return linear(inputs, self._units, True)


class PhasedLSTMCell(SizedCell):
    """An LSTM with a cycle for each unit, in a part of which the unit is open.

    Args:
        num_units: The number of units.
        use_peepholes: Whether gates depend on the cell. Defaults to `False`.
        leak: The opening outside that part. Defaults to 0.001.
        ratio_on: The initial part of the cycle. Defaults to 0.1.
        trainable_ratio_on: Whether that part is trained. Defaults to `True`.
        period_init_min: The shortest initial cycle. Defaults to 1.
        period_init_max: The longest initial cycle. Defaults to 1000.
        reuse: Whether the variables already exist.
    """

    def __init__(
        self,
        num_units: int,
        use_peepholes: bool = False,
        leak: float = 0.001,
        ratio_on: float = 0.1,
        trainable_ratio_on: bool = True,
        period_init_min: float = 1.0,
        period_init_max: float = 1000.0,
        reuse: Any = None,
    ):
        # Times may have 64 bits.
        super().__init__(
            state_pair(num_units, num_units), num_units, reuse, autocast=False
        )
        self._has_peepholes, self._leak = use_peepholes, leak
        self._ratio, self._is_trained = ratio_on, trainable_ratio_on
        self._periods = math.log(period_init_min), math.log(period_init_max)

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: A pair of times, `[batch, 1]`, and `[batch, size]`.
            state: A pair of `[batch, units]`.
        """
        cell, output = state
        time, x = inputs
        units = self.output_size
        peephole = [cell] if self._has_peepholes else []
        with tf.variable_scope("mask_gates"):
            gates = tf.sigmoid(linear([x, output, *peephole], 2 * units, True))
        update, forget = tf.split(gates, 2, 1)
        with tf.variable_scope("new_input"):
            new = tf.tanh(linear([x, output], units, True))
        new_cell = cell * forget + update * new
        peephole = [new_cell] if self._has_peepholes else []
        with tf.variable_scope("output_gate"):
            gate = tf.sigmoid(linear([x, output, *peephole], units, True))
        opening = self._opening(time)
        cell = opening * new_cell + (1 - opening) * cell
        output = opening * tf.tanh(new_cell) * gate + (1 - opening) * output
        return output, state_pair(cell, output)

    def _opening(self, time: Any) -> Any:
        """Returns the opening of each unit at a time, between 0 and 1."""
        shape = [self.output_size]
        period = tf.get_variable("period", shape, initializer=self._first_periods)
        phase = tf.get_variable(
            "phase",
            shape,
            initializer=lambda shape, dtype, **_: (
                tf.random_uniform(shape, dtype=dtype) * period.initial_value
            ),
        )
        ratio = tf.get_variable(
            "ratio_on",
            shape,
            initializer=tf.constant_initializer(self._ratio),
            trainable=self._is_trained,
        )
        shifted = time - tf.cast(phase, time.dtype)
        length = tf.cast(period, time.dtype)
        # The gradient is that of the time, as if there were a single cycle.
        in_cycle = tf.stop_gradient(tf.mod(shifted, length) - shifted) + shifted
        cycle = tf.cast(in_cycle / length, tf.float32)
        rising = 2 * cycle / ratio
        opening = tf.where(cycle < ratio, 2 - rising, self._leak * cycle)
        return tf.where(cycle < 0.5 * ratio, rising, opening)

    def _first_periods(
        self, shape: Any, dtype: Any = tf.float32, partition_info: Any = None
    ) -> Any:
        del partition_info
        low, high = self._periods
        return tf.exp(tf.random_uniform(shape, low, high, dtype))
