"""Shapes and places of what a device loop takes, where nothing is copied."""

from collections.abc import Mapping
from typing import Any

import jax

from keras_tpu_estimator.engine.inputs.unbatched import batch_size
from keras_tpu_estimator.engine.program.steps import BatchLayout
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.ground.base.abstract_arrays import abstract_array
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.types import Features, Labels, Nest
from keras_tpu_estimator.ground.mesh.sharded_rows import padded_rows
from keras_tpu_estimator.ground.tracing import keras_internals


def of_steps(
    layout: BatchLayout,
    mode: str,
    features: Features,
    labels: Labels,
    is_part: bool = False,
) -> Nest:
    """Those of what `DeviceLoop.put` or `put_one` would give.

    Args:
        layout: How the cores share the batches of the mode.
        mode: A value of `ModeKeys`. In PREDICT steps are not stacked, and what
            is padding takes the place of labels.
        features: Nest of anything with a shape and a dtype.
        labels: The same, or `None`.
        is_part: Whether other hosts have other parts of as many examples.
            Defaults to `False`.
    """
    nest, cores = (features, labels), layout.cores
    axis = 0 if mode == ModeKeys.PREDICT else 1
    if not is_part:
        size = batch_size(nest, axis)
        return of_arrays(nest, layout.sharding(size, axis))
    hosts = cores.topology.num_readers

    def of_all(leaf: Any) -> jax.ShapeDtypeStruct:
        before, (size, *after) = leaf.shape[:axis], leaf.shape[axis:]
        return abstract_array((*before, size * hosts, *after), leaf.dtype)

    return of_arrays(jax.tree.map(of_all, nest), cores.batch_sharding(axis))


def of_data(nest: Nest, place: jax.sharding.Sharding) -> Nest:
    """Those of what `DeviceLoop.put` or `put_one` has given.

    Args:
        nest: Nest of arrays, on the devices or on the host.
    """
    return jax.tree.map(
        lambda leaf: abstract_array(
            leaf.shape, leaf.dtype, getattr(leaf, "sharding", place)
        ),
        nest,
    )


def of_values(
    store: VariableStore, places: Mapping[str, jax.sharding.Sharding]
) -> dict[str, jax.ShapeDtypeStruct]:
    """Those of variables.

    Args:
        places: Where some of them lie, by path.
    """

    def on_devices(path: str) -> tuple[int, ...]:
        shape = tuple(store.variables[path].shape)
        if path not in store.rows:
            return shape
        # Of tables, cores have as many rows each.
        return padded_rows(shape[0], places[path]), *shape[1:]

    return {
        path: abstract_array(
            on_devices(path),
            keras_internals.stored_dtype(store.variables[path]),
            place,
        )
        for path, place in places.items()
    }


def of_arrays(nest: Nest, place: jax.sharding.Sharding) -> Nest:
    """Those of arrays that all lie in one way.

    Args:
        nest: Nest of anything with a shape and a dtype.
    """
    return jax.tree.map(
        lambda leaf: abstract_array(leaf.shape, leaf.dtype, place), nest
    )
