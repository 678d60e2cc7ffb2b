"""Functions lowered for the cores of a topology."""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from keras_tpu_estimator.planning import topologies


def mesh_of(topology):
    """A mesh of all cores of a topology along the axis "batch"."""
    return jax.sharding.Mesh(np.array(topology.machine().devices), ("batch",))


def array(topology, shape, dtype="float32", spec=()):
    """A shape sharded over the cores of a topology."""
    place = NamedSharding(mesh_of(topology), PartitionSpec(*spec))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=place)


def training(topology, rows, width=256, steps=3, depth=2):
    """Steps of a small network with momentum, and their memory by kind.

    Every core has its own rows, and the gradients are summed.
    """
    cores = topology.num_cores

    def run(weights, slots, batches):
        def step(state, batch):
            weights, slots = state

            def loss(weights):
                x = batch
                for number, kernel in enumerate(weights):
                    with jax.named_scope(f"dense_{number}"):
                        x = jax.numpy.tanh(x @ kernel)
                return jax.numpy.mean(x**2)

            gradients = jax.lax.pmean(jax.grad(loss)(weights), "batch")
            slots = jax.tree.map(lambda m, g: 0.9 * m + g, slots, gradients)
            weights = jax.tree.map(lambda w, m: w - 0.1 * m, weights, slots)
            return (weights, slots), None

        return jax.lax.scan(step, (weights, slots), batches)[0]

    whole, split = PartitionSpec(), PartitionSpec(None, "batch")
    function = jax.shard_map(
        run,
        mesh=mesh_of(topology),
        in_specs=(whole, whole, split),
        out_specs=whole,
        check_vma=False,
    )
    weights = [array(topology, (width, width))] * depth
    batches = array(topology, (steps, rows * cores, width), spec=(None, "batch"))
    lowered = jax.jit(function, donate_argnums=(0, 1)).lower(weights, weights, batches)
    return lowered, {"variables": weights, "slots": weights, "input": batches}


V5E = topologies.parse("v5e:2x2")
