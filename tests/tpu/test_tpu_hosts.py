"""Tests several hosts, complete pods, and indivisible batches."""

import functools

import numpy as np
import pytest
from helpers import slow
from tpu_models import SIZE, convolutional, dense, input_fn, made
from tpu_programs import ALONE, DATA_PARALLEL, LAID_OUT, Program, rows

from keras_tpu_estimator.planning import topologies

RULES = {".*up/kernel": (None, "model"), ".*up/bias": ("model",)}
HOSTS = ("v5e:4x4", "v4:2x2x4", "v5p:2x2x2")
PODS = ("v5e:16x16", "v4:8x8x16")
REMAINDER = 5


def remainder_input_fn(params):
    """The smaller last batch of a dataset."""
    yield (
        np.ones((REMAINDER, SIZE), "float32"),
        np.ones((REMAINDER, 1), "float32"),
    )


def on_hosts(network=dense, batch=2048, **settings):
    own = settings.pop("topologies", HOSTS[:1])
    seldom = settings.pop("seldom", ())
    others = settings.pop("others", HOSTS[1:])
    collectives = settings.pop("collectives", DATA_PARALLEL)
    given = settings.pop("input_fn", input_fn)
    return Program(
        lambda folder: made(folder, network, batch=batch, **settings),
        lambda mode: given,
        topologies=own,
        seldom=seldom,
        others=others,
        collectives=collectives,
    )


def spread(cores, **settings):
    tpu = {"num_cores_per_replica": cores}
    return on_hosts(
        tpu=tpu, config={"layout_map": RULES}, collectives=LAID_OUT, **settings
    )


PROGRAMS = {
    "data parallel": on_hosts(seldom=HOSTS[1:] + PODS),
    # There the compiler sums the gradients in two operations.
    "data parallel, two cores a chip": on_hosts(
        topologies=("tpu7x:2x2x2",), others=(), collectives=LAID_OUT
    ),
    "convolutions": on_hosts(convolutional),
    "shard_optimizer": on_hosts(config={"shard_optimizer": True}, collectives=LAID_OUT),
    "two cores a replica": spread(2, others=HOSTS[1:] + PODS),
    # A replica has the chips of one host or of two.
    "four cores a replica": spread(4),
    "eight cores a replica": spread(8),
    # Each core of a host has the complete batch, without sharding.
    "a remainder": on_hosts(
        input_fn=remainder_input_fn,
        batch=32,
        topologies=("v5e:2x2",),
        others=(),
        collectives=ALONE,
    ),
}


@pytest.mark.rows(5)
@pytest.mark.parametrize(("name", "mode", "topology"), rows(PROGRAMS))
def test_hosts(name, mode, topology, compiles):
    compiles(PROGRAMS, name, mode, topology)


@pytest.mark.rows(1)
@pytest.mark.parametrize("make", [on_hosts, functools.partial(spread, 2)])
@pytest.mark.parametrize("pod", [PODS[0], slow(PODS[1])])
def test_pod_and_slice_send_the_same_bytes_in_a_step(make, pod, tmp_path):
    found = []
    for name in ("v5e:2x2", pod):
        program = make(batch=8 * topologies.parse(name).num_cores)
        cost = program.plan(tmp_path, "train", name).cost
        found.append([(c.kind, c.count, c.bytes) for c in cost.collectives])
    assert found[0] == found[1]
