"""Cells of `tf.contrib.rnn` whose gates are convolutions."""

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1.reimplemented.rnn_gated_cells import (
    SizedCell,
    state_pair,
    zeros,
)


class ConvLSTMCell(SizedCell):
    """An LSTM whose gates are convolutions.

    Args:
        conv_ndims: The number of spatial axes: 1, 2 or 3.
        input_shape: The shape of an example, with channels last.
        output_channels: The number of channels of the output.
        kernel_shape: The sizes of the kernel.
        use_bias: Whether gates have a bias. Defaults to `True`.
        skip_connection: Whether the output also contains the input. Defaults to
            `False`.
        forget_bias: A constant that is added to the forget gate. Defaults to 1.
        initializers: Accepted; has no effect.
        name: The name of the layer. Defaults to 'conv_lstm_cell'.

    Raises:
        ValueError: `input_shape` has another number of axes.
    """

    def __init__(
        self,
        conv_ndims: int,
        input_shape: Sequence[int],
        output_channels: int,
        kernel_shape: Sequence[int],
        use_bias: bool = True,
        skip_connection: bool = False,
        **options: Any,
    ):
        forget_bias = options.pop("forget_bias", 1.0)
        options.pop("initializers", None)
        if conv_ndims != len(input_shape) - 1:
            raise ValueError(
                f"`input_shape` must have {conv_ndims + 1} axes, because `conv_ndims` "
                f"is {conv_ndims}. Received: {input_shape}. Add the channels at its "
                "end."
            )
        sizes = list(input_shape[:-1])
        state = tf.TensorShape([*sizes, output_channels])
        channels = output_channels + (input_shape[-1] if skip_connection else 0)
        super().__init__(
            state_pair(state, state),
            tf.TensorShape([*sizes, channels]),
            **{"name": "conv_lstm_cell", **options},
        )
        self._kernel = list(kernel_shape)
        self._channels, self._has_bias = output_channels, use_bias
        self._skips, self._forget_bias = skip_connection, forget_bias

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, ...]` with the `input_shape`.
            state: A pair of such tensors with `output_channels`.
        """
        cell, output = state
        joined = tf.concat([inputs, output], -1)
        channels, dtype = 4 * self._channels, joined.dtype
        kernel = tf.get_variable(
            "kernel", [*self._kernel, joined.shape[-1], channels], dtype
        )
        gates = tf.nn.convolution(joined, kernel, "SAME")
        if self._has_bias:
            gates += zeros("biases", channels, dtype)
        i, j, f, o = tf.split(gates, 4, -1)
        cell = cell * tf.sigmoid(f + self._forget_bias) + tf.sigmoid(i) * tf.tanh(j)
        output = tf.tanh(cell) * tf.sigmoid(o)
        if self._skips:
            output = tf.concat([output, inputs], -1)
        return output, state_pair(cell, output)


class Conv1DLSTMCell(ConvLSTMCell):
    """A `ConvLSTMCell` with one spatial axis, and its other arguments."""

    def __init__(self, name: str = "conv_1d_lstm_cell", **kwargs: Any):
        super().__init__(conv_ndims=1, name=name, **kwargs)


class Conv2DLSTMCell(ConvLSTMCell):
    """A `ConvLSTMCell` with two spatial axes, and its other arguments."""

    def __init__(self, name: str = "conv_2d_lstm_cell", **kwargs: Any):
        super().__init__(conv_ndims=2, name=name, **kwargs)


class Conv3DLSTMCell(ConvLSTMCell):
    """A `ConvLSTMCell` with three spatial axes, and its other arguments."""

    def __init__(self, name: str = "conv_3d_lstm_cell", **kwargs: Any):
        super().__init__(conv_ndims=3, name=name, **kwargs)
