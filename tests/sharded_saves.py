"""Saves of sharded variables by several simulated processes."""

import jax

from keras_tpu_estimator.checkpoints import ShardedVariable, ShardValues
from keras_tpu_estimator.files.formats import registry as formats


def shard_values(value, writers):
    """Returns a value whose shards the given processes write."""
    return ShardValues(
        ShardedVariable(value.shape, value.dtype, writers),
        jax.numpy.asarray(value),
        lambda box: value[box.slices],
    )


def write_shards(files, values, processes=2, name="hdf5", step=20):
    """Writes the shards of all processes.

    Returns the descriptions of the variables, and the receipts, for `save_into`.
    """
    writer = formats.named(name).shard_writer
    writer.prepare(files)
    waiting = [writer.begin(files, step, values, n) for n in range(processes)]
    receipts = [wait() for wait in waiting]
    return {path: each.variable for path, each in values.items()}, receipts
