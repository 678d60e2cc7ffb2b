"""Sums over devices: `CrossReplicaSum` becomes an all-reduce."""

from collections.abc import Mapping

from keras_tpu_estimator.tf1.functions import Node, data_inputs, source

SUM = "CrossReplicaSum"
# Related operations that are not supported.
UNSUPPORTED = frozenset(
    {
        "AllToAll",
        "CollectiveGather",
        "CollectiveGatherV2",
        "CollectivePermute",
        "CollectiveReduce",
        "CollectiveReduceV2",
        "NcclAllReduce",
    }
)


def is_total(node: Node, nodes: Mapping[str, Node]) -> bool:
    """Returns whether a node sums over all devices, which form one group."""
    if node.op != SUM:
        return False
    groups = nodes.get(source(data_inputs(node)[1]))
    if groups is None or groups.op != "Const":
        return False
    dims = groups.attr["value"].tensor.tensor_shape.dim
    return len(dims) == 2 and dims[0].size == 1


def make_all_reduce(node: Node) -> None:
    """Makes a sum over cores the op that TensorFlow's bridge to XLA knows."""
    if node.op == SUM:
        node.op = "XlaAllReduce"
        node.attr["reduce_op"].s = b"Add"
        node.attr["mode"].s = b"CrossReplica"
