"""The costs that the TPU compiler reports for this package and for plain JAX loops.

The costs are equal in every run, and need no TPU. Cycles do not include communication
between cores, which has separate rows.
"""

import tempfile
from collections.abc import Iterator

import jax
import numpy as np

import keras_tpu_estimator as kte
from benchmarks import tpu_lifted as lifted
from benchmarks import tpu_networks as networks
from benchmarks import tpu_tables
from benchmarks.table import Goal, Row
from benchmarks.tpu_lifted import Lifted
from benchmarks.tpu_networks import Network
from keras_tpu_estimator.planning import compiling, costs, topologies
from keras_tpu_estimator.planning.costs import StepCost

_STEPS = 4
# XLA keeps up to a few MiB more for a loop whose length is an argument.
_FEW_BYTES = 2**22
# Cycles relative to a plain JAX loop, and the same for TF1 graphs, which contain more
# operations.
_MOST, _MOST_OF_GRAPHS = 1.03, 1.1
CASES = (
    (networks.TINY, "v5e:2x2"),
    (networks.MLP, "v5e:2x2"),
    (networks.WIDE, "v5e:2x2"),
    (networks.WIDE, "v5e:4x4"),
    (networks.BERT, "v5e:2x2"),
    (networks.RESNET, "v5e:2x2"),
    (lifted.MLP, "v5e:2x2"),
    (lifted.BERT, "v5e:2x2"),
)


def rows() -> Iterator[Row]:
    """Returns rows for the cost of a step on one core."""
    for network, topology in CASES:
        yield from compared(network, topology)
    yield from _rows(
        f"{tpu_tables.NAME}, v5e:4x4",
        tpu_tables.of_estimator("v5e:4x4", _STEPS),
        tpu_tables.of_hand("v5e:4x4", _STEPS),
    )


def compared(network: Network | Lifted, topology: str) -> Iterator[Row]:
    """Returns rows for the cost of one network.

    Args:
        network: The network.
        topology: The topology.
    """
    ours, peer = of_estimator(network, topology), of_hand(network, topology)
    most = _MOST_OF_GRAPHS if isinstance(network, Lifted) else _MOST
    yield from _rows(f"{network.name}, {topology}", ours, peer, most)


def _rows(
    where: str, ours: StepCost, peer: StepCost, most_cycles: float = _MOST
) -> Iterator[Row]:
    kinds = {
        "cycles": (ours.cycles, peer.cycles, "", most_cycles),
        "network": (ours.sent, peer.sent, "B", 1.02),
        "temporary memory": (_held(ours), _held(peer), "B", 1.05),
        "arguments": (_given(ours), _given(peer), "B", 1.02),
    }
    for kind, (own, other, unit, most) in kinds.items():
        goal = Goal("ratio", most=most)
        yield Row(f"{kind}, {where}", own or 0, other or 1, unit, goal)


def of_estimator(network: Network | Lifted, topology: str) -> StepCost:
    """Returns the cost of the network in an estimator.

    Args:
        network: The network.
        topology: The topology.
    """
    slice_ = topologies.parse(topology)
    size = network.batch * slice_.num_cores
    with tempfile.TemporaryDirectory() as directory:
        estimator = kte.TPUEstimator(
            network.model_fn,
            config=kte.RunConfig(
                model_dir=directory,
                save_summary_steps=None,
                tpu_config=kte.TPUConfig(iterations_per_loop=_STEPS),
                shard_optimizer=network.by_hand.shares_slots,
                random_bits="rbg",
            ),
            train_batch_size=size,
        )

        def input_fn(params: dict[str, int]) -> Iterator[tuple[object, object]]:
            size = params["batch_size"]
            x = np.zeros((size, *network.shape), jax.numpy.dtype(network.dtype))
            while True:
                yield x, np.zeros(size, "int32")

        plan = estimator.plan(input_fn, topology, print_fn=None)
    found: StepCost = plan.cost
    return found


def of_hand(network: Network | Lifted, topology: str) -> StepCost:
    """Returns the cost of the same network in plain JAX.

    Args:
        network: The network.
        topology: The topology.
    """
    slice_ = topologies.parse(topology)
    size = (_STEPS, network.batch * slice_.num_cores)
    batches = (
        jax.ShapeDtypeStruct((*size, *network.shape), network.dtype),
        jax.ShapeDtypeStruct(size, "int32"),
    )
    devices = np.array(slice_.machine().devices)
    lowered, kinds = network.by_hand.lowered(devices, batches)
    compiled = compiling.compiled(lowered, slice_)
    return costs.step_cost(compiled, slice_, _STEPS, kinds)


def _held(found: StepCost) -> int:
    """Returns the temporary memory of a step in bytes."""
    return max(found.memory.temporary or 0, _FEW_BYTES)


def _given(found: StepCost) -> int:
    given = sum(each.real for each in found.memory.arguments.values())
    return max(given, _FEW_BYTES)
