"""Compares loops with hand-written ones; `python -m benchmarks tpu` compares more."""

import pytest
from helpers import some_slow

from benchmarks import tpu
from benchmarks import tpu_lifted as lifted
from benchmarks import tpu_networks as networks

NETWORKS = [networks.TINY, networks.MLP, lifted.MLP]


@pytest.mark.parametrize(
    "network",
    some_slow(NETWORKS, NETWORKS[1:]),
    ids=lambda each: each.name,
)
def test_loop_is_as_good_as_a_hand_written_one(network):
    missed = [row for row in tpu.compared(network, "v5e:2x2") if not row.is_ok]
    assert not missed
