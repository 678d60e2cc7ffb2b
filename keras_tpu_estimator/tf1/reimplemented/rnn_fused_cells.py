"""Cells of `tf.contrib.rnn` over complete sequences."""

import abc
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1.reimplemented.rnn import LSTMBlockCell
from keras_tpu_estimator.tf1.shims.resolving import resolve

_cells = resolve("nn.rnn_cell")


class FusedRNNCell(abc.ABC):
    """The base class of cells over complete sequences, time first."""

    @abc.abstractmethod
    def __call__(
        self,
        inputs: Any,
        initial_state: Any = None,
        dtype: Any = None,
        sequence_length: Any = None,
        scope: Any = None,
    ) -> tuple[Any, Any]:
        """Returns the outputs of all steps, and the last state.

        Args:
            inputs: `[time, batch, size]`, or a list of steps.
            initial_state: The state before the first step. Defaults to zeros.
            dtype: The dtype of the state.
            sequence_length: `[batch]`. Defaults to all time steps.
            scope: The variable scope.
        """


class LSTMBlockFusedCell(FusedRNNCell):
    """An LSTM over complete sequences, time first.

    Args:
        num_units: As in `LSTMBlockCell`, like all others.
        forget_bias: See there.
        cell_clip: See there.
        use_peephole: See there.
        reuse: See there.
        dtype: See there.
        name: See there. Defaults to 'lstm_fused_cell'.
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        reuse: Any = None,
        dtype: Any = None,
        name: str = "lstm_fused_cell",
    ):
        self._units, self._name, self._reuse = num_units, name, reuse
        self._options = (forget_bias, cell_clip, use_peephole, dtype, reuse, name)
        self._cell: LSTMBlockCell | None = None

    @property
    def num_units(self) -> int:
        """The number of units."""
        return self._units

    def __call__(
        self,
        inputs: Any,
        initial_state: Any = None,
        dtype: Any = None,
        sequence_length: Any = None,
        scope: Any = None,
    ) -> tuple[Any, Any]:
        """Returns the outputs of all steps, and the last state.

        Args:
            inputs: `[time, batch, size]`.
            initial_state: A pair of `[batch, units]`. Defaults to zeros.
            dtype: The dtype of the state.
            sequence_length: `[batch]`. Defaults to all time steps.
            scope: The variable scope of the first call. Defaults to one with the name
                of the layer, and a number if there are several.
        """
        if initial_state is not None:
            initial_state = _cells.LSTMStateTuple(*initial_state)
        if self._cell is None:
            variable_scope = scope or (self._name if self._reuse else None)
            # In the loop of the steps, all layers would have the same number.
            with tf.variable_scope(
                variable_scope, default_name=self._name
            ) as cell_scope:
                self._cell = LSTMBlockCell(
                    self._units, *self._options, _scope=cell_scope
                )
        return tf.nn.dynamic_rnn(
            self._cell,
            inputs,
            sequence_length,
            initial_state,
            dtype or inputs.dtype,
            time_major=True,
            scope=tf.get_variable_scope(),
        )


class FusedRNNCellAdaptor(FusedRNNCell):
    """A cell over complete sequences, time first.

    Args:
        cell: The cell.
        use_dynamic_rnn: Whether the steps are a loop; otherwise they are unrolled.
            Defaults to `False`.
    """

    def __init__(self, cell: Any, use_dynamic_rnn: bool = False):
        self._cell, self._is_loop = cell, use_dynamic_rnn

    def __call__(
        self,
        inputs: Any,
        initial_state: Any = None,
        dtype: Any = None,
        sequence_length: Any = None,
        scope: Any = None,
    ) -> tuple[Any, Any]:
        """Returns the outputs of all steps, as a list if `inputs` is one.

        The last state is the second result.

        Args:
            inputs: `[time, batch, size]`, or a list of steps.
            initial_state: As in `LSTMBlockFusedCell`, like all others.
            dtype: See there.
            sequence_length: See there.
            scope: See there.
        """
        is_list = isinstance(inputs, list)
        if self._is_loop:
            outputs, state = tf.nn.dynamic_rnn(
                self._cell,
                tf.stack(inputs) if is_list else inputs,
                sequence_length,
                initial_state,
                dtype,
                time_major=True,
                scope=scope,
            )
            return tf.unstack(outputs) if is_list else outputs, state
        outputs, state = tf.nn.static_rnn(
            self._cell,
            inputs if is_list else tf.unstack(inputs),
            initial_state,
            dtype,
            sequence_length,
            scope,
        )
        return outputs if is_list else tf.stack(outputs), state


class TimeReversedFusedRNN(FusedRNNCell):
    """A cell over complete sequences that reads them from their ends.

    Args:
        cell: The cell, such as an `LSTMBlockFusedCell`.
    """

    def __init__(self, cell: Any):
        self._cell = cell

    def __call__(
        self,
        inputs: Any,
        initial_state: Any = None,
        dtype: Any = None,
        sequence_length: Any = None,
        scope: Any = None,
    ) -> tuple[Any, Any]:
        """Returns the outputs in the order of the inputs, and the last state.

        Args:
            inputs: `[time, batch, size]`, or a list of steps.
            initial_state: As in `LSTMBlockFusedCell`, like all others.
            dtype: See there.
            sequence_length: See there.
            scope: See there.
        """
        outputs, state = self._cell(
            _reversed(inputs, sequence_length),
            initial_state=initial_state,
            dtype=dtype,
            sequence_length=sequence_length,
            scope=scope,
        )
        return _reversed(outputs, sequence_length), state


def _reversed(steps: Any, lengths: Any) -> Any:
    """Returns the steps of each sequence in reverse, with padding at the end."""
    if isinstance(steps, list):
        return steps[::-1]
    if lengths is None:
        return tf.reverse(steps, [0])
    return tf.reverse_sequence(steps, lengths, seq_axis=0, batch_axis=1)
