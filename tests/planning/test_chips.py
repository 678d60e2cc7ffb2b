"""The published numbers of chips match those of XLA's compiler."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest
from helpers import some_slow

from keras_tpu_estimator.planning import topologies
from keras_tpu_estimator.planning.chips import CHIPS

_SMALLEST = {kind: topologies.shapes(kind)[0] for kind in CHIPS}


def _lowered(kind, function, *shapes):
    """A function of arrays in bfloat16, for one core of a kind."""
    topology = topologies.TpuTopology(CHIPS[kind], _SMALLEST[kind])
    core = jax.sharding.SingleDeviceSharding(topology.machine().first)
    arrays = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=core) for shape in shapes
    )
    return jax.jit(function).lower(*arrays)


@pytest.mark.parametrize("kind", CHIPS)
def test_the_memory_left_to_programs(kind):
    core = CHIPS[kind].core
    lowered = _lowered(kind, lambda x: jnp.tanh(x) + x[::-1], (2**18, 2**20))
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE") as raised:
        lowered.compile()
    limit = re.search(r"available HBM \((\S+)G\)", str(raised.value))[1]
    assert core.memory_left / 2**30 == pytest.approx(float(limit), abs=0.02)
    assert 0.9 < core.memory_left / core.memory < 1


@pytest.mark.parametrize("kind", some_slow(CHIPS, CHIPS.keys() - {"v5e"}))
def test_products_take_nearly_the_cycles_of_the_peak(kind):
    size = 2048
    compiled = _lowered(kind, jnp.matmul, *[(size, size)] * 2).compile()
    found = re.findall(r'"estimated_cycles":"(\d+)"', compiled.as_text())
    cycles = sum(map(int, found))
    share = 2 * size**3 / cycles / CHIPS[kind].core.cycle_flops
    assert 0.5 < share < 1


def test_a_core_has_its_share_of_a_chip():
    chip = CHIPS["tpu7x"]
    assert chip.core.flops == chip.flops / 2
    assert chip.core.clock == chip.clock
    assert chip.core.memory_left * 2 == chip.memory_left
    assert CHIPS["v4"].core.flops == CHIPS["v4"].flops


def test_a_chip_does_something():
    with pytest.raises(ValueError, match="`flops` must be positive"):
        dataclasses.replace(CHIPS["v4"], flops=0.0)
