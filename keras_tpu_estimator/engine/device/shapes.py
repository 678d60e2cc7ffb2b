"""Shapes and shardings of a device loop's arguments, without their values."""

from collections.abc import Mapping
from typing import Any

import jax

from keras_tpu_estimator.base.common.dtype_changes import abstract_array
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.base.mesh.sharded_rows import padded_rows
from keras_tpu_estimator.base.upstream import keras_variables
from keras_tpu_estimator.engine.inputs.unbatched import batch_size
from keras_tpu_estimator.engine.program.steps import BatchLayout
from keras_tpu_estimator.engine.program.store import VariableStore


def of_steps(
    layout: BatchLayout,
    mode: str,
    features: Features,
    labels: Labels,
    is_part: bool = False,
) -> PyTree:
    """Returns the shapes that `DeviceLoop.put` or `put_one` would return.

    In PREDICT steps are not stacked, and the mask of padding takes the place of labels.
    `is_part` means that each other process has an equally large part.
    """
    batch, cores = (features, labels), layout.cores
    axis = 0 if mode == ModeKeys.PREDICT else 1
    if not is_part:
        size = batch_size(batch, axis)
        return of_arrays(batch, layout.sharding(size, axis))
    hosts = cores.topology.num_readers

    def of_all(leaf: Any) -> jax.ShapeDtypeStruct:
        before, (size, *after) = leaf.shape[:axis], leaf.shape[axis:]
        return abstract_array((*before, size * hosts, *after), leaf.dtype)

    return of_arrays(jax.tree.map(of_all, batch), cores.batch_sharding(axis))


def of_data(tree: PyTree, sharding: jax.sharding.Sharding) -> PyTree:
    """Returns the shapes of data for the devices, with `place` for arrays elsewhere."""
    return jax.tree.map(
        lambda leaf: abstract_array(
            leaf.shape, leaf.dtype, getattr(leaf, "sharding", sharding)
        ),
        tree,
    )


def of_values(
    store: VariableStore, shardings: Mapping[str, jax.sharding.Sharding]
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of variables on the devices, given their shardings by path."""

    def on_devices(path: str) -> tuple[int, ...]:
        shape = tuple(store.variables[path].shape)
        if path not in store.rows:
            return shape
        # Each core has the same number of rows of an embedding table.
        return padded_rows(shape[0], shardings[path]), *shape[1:]

    return {
        path: abstract_array(
            on_devices(path),
            keras_variables.stored_dtype(store.variables[path]),
            sharding,
        )
        for path, sharding in shardings.items()
    }


def of_arrays(tree: PyTree, sharding: jax.sharding.Sharding) -> PyTree:
    """Returns the shapes of arrays that have one sharding."""
    return jax.tree.map(
        lambda leaf: abstract_array(leaf.shape, leaf.dtype, sharding), tree
    )
