"""LSTMs of `tf.contrib.rnn` that also run over the frequencies of their inputs."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1.reimplemented.rnn_coupled_gates import (
    clipped,
    sharded_variable,
)
from keras_tpu_estimator.tf1.reimplemented.rnn_gated_cells import SizedCell


def _windows(
    inputs: Any, start: int, count: int, size: int | None, skip: int | None
) -> list[Any]:
    """Returns windows of this size over the features, each `skip` after the last."""
    starts = [start + number * (skip or 0) for number in range(count)]
    return [tf.slice(inputs, [0, first], [-1, size]) for first in starts]


class TimeFreqLSTMCell(SizedCell):
    """An LSTM that runs over the frequencies of an input, within each time step.

    Args:
        num_units: The number of units.
        use_peepholes: Whether gates depend on the cell. Defaults to `False`.
        cell_clip: The limit to which the cell is clipped. Defaults to none.
        initializer: Accepted; has no effect, as in TensorFlow 1.
        num_unit_shards: The number of variables that the kernel is split into.
            Defaults to 1.
        forget_bias: A constant that is added to the forget gate. Defaults to 1.
        feature_size: The number of features that the cell reads at each frequency.
        frequency_skip: The distance of two frequencies. Defaults to 1.
        reuse: Whether the variables already exist.
    """

    def __init__(
        self,
        num_units: int,
        use_peepholes: bool = False,
        cell_clip: float | None = None,
        initializer: Any = None,
        num_unit_shards: int = 1,
        forget_bias: float = 1.0,
        feature_size: int | None = None,
        frequency_skip: int = 1,
        reuse: Any = None,
    ):
        del initializer
        super().__init__(2 * num_units, num_units, reuse)
        self._units, self._has_peepholes = num_units, use_peepholes
        self._clip, self._shards = cell_clip, num_unit_shards
        self._forget_bias = forget_bias
        self._window: tuple[Any, Any] = feature_size, frequency_skip

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`.
            state: `[batch, 2 * units * frequencies]`.
        """
        units, dtype = self._units, inputs.dtype
        size, skip = self._window
        count = int((inputs.shape[1] - size) / skip) + 1
        windows = _windows(inputs, 0, count, size, skip)
        shape = [windows[0].shape[1] + 2 * units, 4 * units]
        kernel = sharded_variable("W", shape, dtype, self._shards)
        bias = tf.get_variable("B", [4 * units], dtype, tf.zeros_initializer())
        diagonals = {
            gate: tf.get_variable(f"W_{gate}_diag", [units], dtype)
            for gate in ("FIO" if self._has_peepholes else "")
        }

        def gate(values: Any, name: str, cell: Any) -> Any:
            peephole = diagonals[name] * cell if name in diagonals else 0
            return tf.sigmoid(values + peephole)

        lower = tf.zeros([tf.shape(inputs)[0], units], dtype)
        outputs, states = [], []
        for number, window in enumerate(windows):
            cell, output = (
                tf.slice(state, [0, (2 * number + n) * units], [-1, units])
                for n in range(2)
            )
            gates = tf.matmul(tf.concat([window, output, lower], 1), kernel) + bias
            i, j, f, o = tf.split(gates, 4, 1)
            remembered = gate(f + self._forget_bias, "F", cell) * cell
            cell = clipped(remembered + gate(i, "I", cell) * tf.tanh(j), self._clip)
            lower = gate(o, "O", cell) * tf.tanh(cell)
            outputs.append(lower)
            states += [cell, lower]
        return tf.concat(outputs, 1), tf.concat(states, 1)


@dataclasses.dataclass(frozen=True)
class _Direction:
    """The weights of an LSTM along the frequencies or along the time.

    `diagonals` has the weights of peepholes by gate: those of the frequency's cell,
    and those of the time's.
    """

    kernel: Any
    bias: Any
    diagonals: Mapping[str, tuple[Any, Any]]

    def gate(self, name: str, values: Any, cells: Sequence[Any]) -> Any:
        """Returns a gate, with its peepholes into both cells."""
        for diagonal, cell in zip(self.diagonals.get(name, ()), cells, strict=False):
            values += diagonal * cell
        return tf.sigmoid(values)


class GridLSTMCell(SizedCell):
    """LSTMs along the frequencies of an input and along the time.

    Args:
        num_units: The number of units of each LSTM.
        use_peepholes: Whether gates depend on both cells. Defaults to `False`.
        share_time_frequency_weights: Whether both directions have the same weights.
            Defaults to `False`.
        cell_clip: The limit to which cells are clipped. Defaults to none.
        initializer: Accepted; has no effect, as in TensorFlow 1.
        num_unit_shards: The number of variables that each kernel is split into.
            Defaults to 1.
        forget_bias: A constant that is added to forget gates. Defaults to 1.
        feature_size: The number of features that the cell reads at each frequency.
        frequency_skip: The distance of two frequencies.
        num_frequency_blocks: A list with the number of frequencies of each block.
        start_freqindex_list: The first feature of each block. Defaults to one block.
        end_freqindex_list: The feature after the last one of each block.
        couple_input_forget_gates: Whether forget gates are one minus input gates.
            Defaults to `False`.
        state_is_tuple: Whether the state is a named tuple. Defaults to `True`.
        reuse: Whether the variables already exist.

    Raises:
        ValueError: `num_frequency_blocks` is missing.
    """

    _PREFIXES: tuple[str, ...] = ("state",)
    _TUPLE = "GridLSTMStateTuple"

    def __init__(
        self,
        num_units: int,
        use_peepholes: bool = False,
        share_time_frequency_weights: bool = False,
        cell_clip: float | None = None,
        initializer: Any = None,
        num_unit_shards: int = 1,
        forget_bias: float = 1.0,
        feature_size: int | None = None,
        frequency_skip: int | None = None,
        num_frequency_blocks: Sequence[int] | None = None,
        start_freqindex_list: Sequence[int] | None = None,
        end_freqindex_list: Sequence[int] | None = None,
        couple_input_forget_gates: bool = False,
        state_is_tuple: bool = True,
        reuse: Any = None,
    ):
        del initializer
        if num_frequency_blocks is None:
            raise ValueError(
                "`num_frequency_blocks` must be a list of integers. Received: None. "
                "Pass the number of frequencies of each block."
            )
        names = [
            f"{prefix}_f{number:02d}_b{block:02d}_{value}"
            for prefix in self._PREFIXES
            for block, count in enumerate(num_frequency_blocks)
            for number in range(count)
            for value in "cm"
        ]
        size = num_units * len(names)
        make_class: Any = collections.namedtuple
        state_class = make_class(self._TUPLE, names)
        self._tuple = state_class
        state = self._tuple(*[num_units] * len(names)) if state_is_tuple else size
        super().__init__(state, size, reuse)
        self._units, self._clip, self._shards = num_units, cell_clip, num_unit_shards
        self._has_peepholes = use_peepholes
        self._is_shared = share_time_frequency_weights
        self._is_coupled, self._is_tuple = couple_input_forget_gates, state_is_tuple
        self._forget_bias, self._counts = forget_bias, [*num_frequency_blocks]
        self._window: tuple[Any, Any] = feature_size, frequency_skip
        self._ranges = start_freqindex_list, end_freqindex_list

    @property
    def state_tuple_type(self) -> Any:
        """The class of the state, or `None` if it is one tensor."""
        return self._tuple if self._is_tuple else None

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`.
            state: A named tuple of `[batch, units]`, or one tensor.
        """
        outputs, states = self._run(self._blocks(inputs), state, *self._PREFIXES)
        if self._is_tuple:
            return tf.concat(outputs, 1), self._tuple(*states)
        return tf.concat(outputs, 1), tf.concat(states, 1)

    def _blocks(self, inputs: Any, offset: int = 0) -> list[list[Any]]:
        """Returns the windows of each block, moved by an offset into zeros."""
        width, (size, skip) = inputs.shape[1], self._window
        starts, ends = self._ranges
        ranges = [*zip(starts, ends or (), strict=False)] if starts else [(0, width)]
        counts = [int((end - start - size) / skip) + 1 for start, end in ranges]
        if counts != self._counts:
            raise ValueError(
                "`num_frequency_blocks` must be the numbers of windows in each "
                f"block, {counts} for {width} features. Received: {self._counts}. "
                "Change it, or the sizes and indices of the blocks."
            )
        inputs = tf.pad(inputs, [[0, 0], [max(-offset, 0), max(offset, 0)]])
        return [
            _windows(inputs, start + max(offset, 0), count, size, skip)
            for (start, _), count in zip(ranges, counts, strict=True)
        ]

    def _run(
        self, blocks: Sequence[Sequence[Any]], state: Any, prefix: str
    ) -> tuple[list[Any], list[Any]]:
        """Returns the outputs and the states of all blocks."""
        outputs, states = [], []
        for block, windows in enumerate(blocks):
            frequency, time = self._directions(block, windows[0])
            batch, dtype = tf.shape(windows[0])[0], windows[0].dtype
            lower = [tf.zeros([batch, self._units], dtype)] * 2
            for number, window in enumerate(windows):
                earlier = self._state_of(state, f"{prefix}_f{number:02d}_b{block:02d}")
                joined = tf.concat([window, earlier[1], lower[1]], 1)
                cells = lower[0], earlier[0]
                gates = self._gates(frequency, joined, cells)
                lower_cell, frequency_out = self._cell(gates, lower[0])
                if time is not frequency:
                    gates = self._gates(time, joined, cells)
                cell, time_out = self._cell(gates, earlier[0])
                new_cells = lower_cell, cell
                lower = [
                    lower_cell,
                    frequency.gate("O", frequency_out, new_cells) * tf.tanh(lower_cell),
                ]
                output = time.gate("O", time_out, new_cells) * tf.tanh(cell)
                outputs += [output, lower[1]]
                states += [cell, output]
        return outputs, states

    def _state_of(self, state: Any, name: str) -> list[Any]:
        """Returns the cell and the output of a frequency."""
        if self._is_tuple:
            return [getattr(state, f"{name}_{value}") for value in "cm"]
        # As in TensorFlow 1, all blocks start with the state of the first one.
        first = 2 * self._units * int(name[-6:-4])
        part = tf.slice(state, [0, first], [-1, 2 * self._units])
        return tf.split(part, 2, 1)

    def _gates(self, direction: _Direction, joined: Any, cells: Any) -> list[Any]:
        """Returns the gates for input and forgetting, the new cell, and the output."""
        values = tf.matmul(joined, direction.kernel) + direction.bias
        i, j, *f, o = tf.split(values, 3 if self._is_coupled else 4, 1)
        enter = direction.gate("I", i, cells)
        if self._is_coupled:
            return [enter, 1.0 - enter, j, o]
        return [enter, direction.gate("F", f[0] + self._forget_bias, cells), j, o]

    def _cell(self, gates: Sequence[Any], cell: Any) -> tuple[Any, Any]:
        """Returns the new cell, and the values of its output gate."""
        enter, remain, new, out = gates
        return clipped(remain * cell + enter * tf.tanh(new), self._clip), out

    def _directions(self, block: int, window: Any) -> tuple[_Direction, _Direction]:
        """Returns the weights of a block, along the frequencies and along the time."""
        units, dtype = self._units, window.dtype
        columns = (3 if self._is_coupled else 4) * units
        shape = [window.shape[1] + 2 * units, columns]
        words = {"f": "freq"} if self._is_shared else {"f": "freq", "t": "time"}
        weights = [
            (
                sharded_variable(f"W_{letter}_{block}", shape, dtype, self._shards),
                tf.get_variable(
                    f"B_{letter}_{block}", [columns], dtype, tf.zeros_initializer()
                ),
            )
            for letter in words
        ]
        made = [
            _Direction(kernel, bias, dict(self._diagonals(word, block, dtype)))
            for (kernel, bias), word in zip(weights, words.values(), strict=True)
        ]
        return made[0], made[-1]

    def _diagonals(
        self, word: str, block: int, dtype: Any
    ) -> Iterator[tuple[str, tuple[Any, Any]]]:
        """Yields the weights of a direction's peepholes by gate."""
        if not self._has_peepholes:
            return
        for gate in "IO" if self._is_coupled else "FIO":
            first, second = (
                tf.get_variable(
                    f"W_{gate}_diag_{word}{letter}_{block}", [self._units], dtype
                )
                for letter in "ft"
            )
            yield gate, (first, second)


class BidirectionalGridLSTMCell(GridLSTMCell):
    """A `GridLSTMCell` along the frequencies in both directions.

    Args:
        num_units: As in `GridLSTMCell`, like all others except the last but one.
        use_peepholes: See there.
        share_time_frequency_weights: See there.
        cell_clip: See there.
        initializer: See there.
        num_unit_shards: See there.
        forget_bias: See there.
        feature_size: See there.
        frequency_skip: See there.
        num_frequency_blocks: See there.
        start_freqindex_list: See there.
        end_freqindex_list: See there.
        couple_input_forget_gates: See there.
        backward_slice_offset: The number of features by which the windows of the
            backward direction are moved. Defaults to 0.
        reuse: See there.
    """

    _PREFIXES = ("fwd_state", "bwd_state")
    _TUPLE = "BidirectionalGridLSTMStateTuple"

    def __init__(
        self,
        num_units: int,
        use_peepholes: bool = False,
        share_time_frequency_weights: bool = False,
        cell_clip: float | None = None,
        initializer: Any = None,
        num_unit_shards: int = 1,
        forget_bias: float = 1.0,
        feature_size: int | None = None,
        frequency_skip: int | None = None,
        num_frequency_blocks: Sequence[int] | None = None,
        start_freqindex_list: Sequence[int] | None = None,
        end_freqindex_list: Sequence[int] | None = None,
        couple_input_forget_gates: bool = False,
        backward_slice_offset: int = 0,
        reuse: Any = None,
    ):
        super().__init__(
            num_units,
            use_peepholes,
            share_time_frequency_weights,
            cell_clip,
            initializer,
            num_unit_shards,
            forget_bias,
            feature_size,
            frequency_skip,
            num_frequency_blocks,
            start_freqindex_list,
            end_freqindex_list,
            couple_input_forget_gates,
            reuse=reuse,
        )
        self._offset = int(backward_slice_offset)

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Runs one step.

        Args:
            inputs: `[batch, size]`.
            state: A named tuple of `[batch, units]`.
        """
        forward = self._blocks(inputs)
        backward = self._blocks(inputs, self._offset) if self._offset else forward
        turned = [windows[::-1] for windows in backward]
        outputs, states = [], []
        for blocks, prefix in zip((forward, turned), self._PREFIXES, strict=True):
            with tf.variable_scope(prefix.removesuffix("_state")):
                of_blocks = self._run(blocks, state, prefix)
            outputs += of_blocks[0]
            states += of_blocks[1]
        return tf.concat(outputs, 1), self._tuple(*states)
