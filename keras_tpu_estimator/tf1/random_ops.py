"""Random ops as functions of a key: of the seed, the core and the step.

Each has a stream of numbers of its own.
"""

import numpy as np

from keras_tpu_estimator.tf1.functions import Node
from keras_tpu_estimator.tf1.functions import data_inputs
from keras_tpu_estimator.tf1.writing import Writer
from keras_tpu_estimator.tf1.writing import set_inputs
from keras_tpu_estimator.tf1.writing import type_number

KEY = "kte_key"
_SAMPLE = "Multinomial"
_STATELESS = {
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
}
# What the bridge would make a generator of that no seed repeats.
UNSUPPORTED = frozenset(
    {
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
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
    """Whether a node draws numbers that no seed of its own determines."""
    return node.op in _STATELESS or node.op == _SAMPLE


def make_stateless(node: Node, stream: int, writer: Writer) -> None:
    """Makes a random node a function of the key.

    Args:
        node: The node.
        stream: A number that no other node of the step has.
        writer: Writes nodes beside it.
    """
    if node.op == _SAMPLE:
        _make_sample_stateless(node, stream, writer)
        return
    shape, *bounds = data_inputs(node)
    counter = writer.constant(
        f"kte_counter_{stream}", np.array([0, stream], np.uint64)
    )
    algorithm = writer.constant(f"kte_algorithm_{stream}", _PHILOX)
    # `T` is the type of the shape, but that of bounds if these are integers.
    types = {
        "dtype": node.attr["Tout" if bounds else "dtype"].type,
        "Tshape": node.attr["T"].type,
    }
    _become(node, _STATELESS[node.op], types)
    set_inputs(node, [shape, KEY, counter, algorithm, *bounds])


def _make_sample_stateless(node: Node, stream: int, writer: Writer) -> None:
    """Draws from a categorical distribution, by a seed of two integers."""
    logits, count = data_inputs(node)
    whole = {"T": type_number("uint64"), "type": type_number("int32")}
    halves = writer.node(f"kte_halves_{stream}", "Bitcast", [KEY], whole)
    shape = writer.constant(f"kte_shape_{stream}", np.array([2], np.int32))
    integer = type_number("int32")
    flat = writer.node(
        f"kte_flat_{stream}",
        "Reshape",
        [halves, shape],
        {"T": integer, "Tshape": integer},
    )
    own = np.array([stream, -stream], np.int32)
    number = writer.constant(f"kte_stream_{stream}", own)
    seed = writer.node(
        f"kte_seed_{stream}", "AddV2", [flat, number], {"T": integer}, "z"
    )
    types = {
        "T": node.attr["T"].type,
        "Tseed": integer,
        "output_dtype": node.attr["output_dtype"].type or type_number("int64"),
    }
    _become(node, "StatelessMultinomial", types)
    set_inputs(node, [logits, count, seed])


def _become(node: Node, op: str, types: dict[str, int]) -> None:
    for name in list(node.attr):
        del node.attr[name]
    node.op = op
    for name, number in types.items():
        node.attr[name].type = number
