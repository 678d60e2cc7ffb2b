"""Random ops as functions of a key: of the seed, the device and the step.

Each op has a separate stream of numbers.
"""

import functools
from typing import Any

import numpy as np

from keras_tpu_estimator.tf1.graph.definitions import (
    Node,
    Writer,
    data_inputs,
    set_inputs,
    type_number,
)

KEY = "kte_key"
_SAMPLE, _SHUFFLE = "Multinomial", "RandomShuffle"
_STATELESS = {
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
}
# Ops for which the bridge uses a generator that no seed repeats.
UNSUPPORTED = frozenset(
    {
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "StatefulRandomBinomial",
        "StatefulStandardNormalV2",
        "StatefulTruncatedNormal",
        "StatefulUniform",
        "StatefulUniformFullInt",
        "StatefulUniformInt",
    }
)
_PHILOX = np.int32(1)


def is_random(node: Node) -> bool:
    """Returns whether a node draws numbers that its own seed does not determine."""
    return node.op in _STATELESS or node.op in (_SAMPLE, _SHUFFLE)


def make_stateless(node: Node, stream: int, writer: Writer) -> None:
    """Makes a random node a function of the key, with a separate stream."""
    if node.op == _SAMPLE:
        _make_sample_stateless(node, stream, writer)
        return
    if node.op == _SHUFFLE:
        _make_shuffle_stateless(node, stream, writer)
        return
    shape, *bounds = data_inputs(node)
    state = _state(stream, writer)
    # `T` is the type of the shape, or of the bounds if these are integers.
    types = {
        "dtype": node.attr["Tout" if bounds else "dtype"].type,
        "Tshape": node.attr["T"].type,
    }
    _become(node, _STATELESS[node.op], types)
    set_inputs(node, [shape, *state, *bounds])


def _state(stream: int, writer: Writer) -> list[str]:
    """Returns the start of a stream: the key, a counter and an algorithm."""
    counter = writer.constant(f"kte_counter_{stream}", np.array([0, stream], np.uint64))
    algorithm = writer.constant(f"kte_algorithm_{stream}", _PHILOX)
    return [KEY, counter, algorithm]


def _make_shuffle_stateless(node: Node, stream: int, writer: Writer) -> None:
    """Reorders rows by random numbers, one for each row."""
    add = functools.partial(_add_node, writer, stream)
    (rows,) = data_inputs(node)
    dtype, integer = node.attr["T"].type, type_number("int32")
    zero, one, none, axis = (
        writer.constant(f"kte_{what}_{stream}", np.array(value, np.int32))
        for what, value in (
            ("zero", [0]),
            ("one", [1]),
            ("no", []),
            ("axis", 0),
        )
    )
    shape = add("shape", "Shape", [rows], {"T": dtype, "out_type": integer})
    integers = {"T": integer, "Index": integer}
    length = add("length", "Slice", [shape, zero, one], integers)
    numbers = add(
        "numbers",
        "StatelessRandomUniformFullIntV2",
        [length, *_state(stream, writer)],
        {"dtype": integer, "Tshape": integer},
    )
    integers = {"T": integer, "Tshape": integer}
    count = add("count", "Reshape", [length, none], integers)
    integers = {"T": integer, "Tk": integer, "index_type": integer}
    order = add("order", "TopKV2", [numbers, count], integers, "indices", 1)
    types = {"Tparams": dtype, "Tindices": integer, "Taxis": integer}
    _become(node, "GatherV2", types)
    set_inputs(node, [rows, order, axis])


def _make_sample_stateless(node: Node, stream: int, writer: Writer) -> None:
    """Draws from a categorical distribution, with a seed of two integers."""
    add = functools.partial(_add_node, writer, stream)
    logits, count = data_inputs(node)
    bitcast_types = {"T": type_number("uint64"), "type": type_number("int32")}
    halves = add("halves", "Bitcast", [KEY], bitcast_types)
    shape = writer.constant(f"kte_shape_{stream}", np.array([2], np.int32))
    integer = type_number("int32")
    integers = {"T": integer, "Tshape": integer}
    flat = add("flat", "Reshape", [halves, shape], integers)
    offsets = np.array([stream, -stream], np.int32)
    number = writer.constant(f"kte_stream_{stream}", offsets)
    seed = add("seed", "AddV2", [flat, number], {"T": integer}, "z")
    types = {
        "T": node.attr["T"].type,
        "Tseed": integer,
        "output_dtype": node.attr["output_dtype"].type or type_number("int64"),
    }
    _become(node, "StatelessMultinomial", types)
    set_inputs(node, [logits, count, seed])


def _add_node(writer: Writer, stream: int, what: str, *node: Any) -> str:
    """Adds a node for a stream, as `Writer.node` does."""
    return writer.node(f"kte_{what}_{stream}", *node)


def _become(node: Node, op: str, types: dict[str, int]) -> None:
    for name in list(node.attr):
        del node.attr[name]
    node.op = op
    for name, number in types.items():
        node.attr[name].type = number
