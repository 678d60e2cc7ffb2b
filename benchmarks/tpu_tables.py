"""An embedding table over all cores of a TPU, compared with plain JAX."""

import tempfile
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import keras_tpu_estimator as kte
from keras_tpu_estimator.planning import compiling, costs, topologies
from keras_tpu_estimator.planning.costs import StepCost

NAME = "table of 1 million x 64, 20 ids, batch 4,096"
_ROWS, _WIDTH, _LENGTH, _BATCH = 1_000_000, 64, 20, 4096
_RATE = 0.1
_AXIS = "cores"


def of_estimator(topology: str, steps: int) -> StepCost:
    """Returns the cost of the table in an estimator.

    Args:
        topology: The topology.
        steps: The number of steps in a loop.
    """
    tables = kte.experimental
    spec = tables.EmbeddingConfigSpec(
        optimization_parameters=tables.AdagradParameters(_RATE),
        table_to_config_dict={"table": tables.TableConfig(_ROWS, _WIDTH)},
        feature_to_config_dict={"ids": tables.FeatureConfig("table")},
    )
    with tempfile.TemporaryDirectory() as directory:
        estimator = kte.TPUEstimator(
            _model_fn,
            config=kte.RunConfig(
                model_dir=directory,
                save_summary_steps=None,
                tpu_config=kte.TPUConfig(iterations_per_loop=steps),
            ),
            train_batch_size=_BATCH,
            embedding_config_spec=spec,
        )
        found: StepCost = estimator.plan(_input_fn, topology, print_fn=None).cost
    return found


def of_hand(topology: str, steps: int) -> StepCost:
    """Returns the cost of the same table in plain JAX.

    Args:
        topology: The topology.
        steps: The number of steps in a loop.
    """
    slice_ = topologies.parse(topology)
    mesh = Mesh(np.array(slice_.machine().devices), _AXIS)
    rows, whole = PartitionSpec(_AXIS), PartitionSpec()
    split = PartitionSpec(None, _AXIS)

    def array(spec: PartitionSpec, *shape: int, dtype: str = "float32") -> Any:
        place = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

    table = array(rows, _ROWS, _WIDTH)
    dense = (array(whole, _WIDTH, 1), array(whole, 1))
    batches = (
        array(split, steps, _BATCH, _LENGTH, dtype="int32"),
        array(split, steps, _BATCH),
    )
    places = (rows, rows, whole)
    run = jax.shard_map(
        lambda state, batches: jax.lax.scan(_step, state, batches),
        mesh=mesh,
        in_specs=(places, split),
        out_specs=(places, whole),
        check_vma=False,
    )
    state = (table, table, dense)
    lowered = jax.jit(run, donate_argnums=0).lower(state, batches)
    kinds = {"state": state, "input": batches}
    compiled = compiling.compiled(lowered, slice_)
    return costs.step_cost(compiled, slice_, steps, kinds)


def _step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
    rows, slots, dense = state
    ids, labels = batch
    count = len(rows)
    numbers = jax.lax.all_gather(ids, _AXIS, tiled=True)
    numbers = numbers - jax.lax.axis_index(_AXIS) * count
    own = jnp.where((numbers >= 0) & (numbers < count), numbers, count)
    found = jnp.take(rows, own, axis=0, mode="fill", fill_value=0).mean(1)
    activations = jax.lax.psum_scatter(found, _AXIS, tiled=True)

    def loss(dense: Any, activations: jax.Array) -> jax.Array:
        kernel, bias = dense
        outputs = activations @ kernel + bias
        return jnp.mean((outputs[:, 0] - labels) ** 2)

    value, gradients = jax.value_and_grad(loss, (0, 1))(dense, activations)
    value, change = jax.lax.pmean((value, gradients[0]), _AXIS)
    dense = jax.tree.map(lambda w, g: w - _RATE * g, dense, change)
    # The gradient of the mean over the cores.
    share = 1 / (_LENGTH * jax.lax.axis_size(_AXIS))
    gradient = jax.lax.all_gather(gradients[1] * share, _AXIS, tiled=True)
    rows, slots = _updated(rows, slots, own.reshape(-1), gradient)
    return (rows, slots, dense), value


def _updated(
    rows: jax.Array, slots: jax.Array, own: jax.Array, gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Updates each used row once by Adagrad."""
    order = jnp.argsort(own)
    own = own[order]
    is_first = jnp.concatenate([jnp.array([True]), own[1:] != own[:-1]])
    which = jnp.cumsum(is_first) - 1
    summed = jax.ops.segment_sum(
        gradient[order // _LENGTH],
        which,
        num_segments=len(own),
        indices_are_sorted=True,
    )
    used = jnp.full(len(own), len(rows)).at[which].set(own)
    squares = slots.at[used].get(mode="fill", fill_value=1) + summed**2
    moved = rows.at[used].get(mode="fill", fill_value=0)
    moved = moved - _RATE * summed / jnp.sqrt(squares)

    def put(x: jax.Array, new: jax.Array) -> jax.Array:
        return x.at[used].set(new, mode="drop", indices_are_sorted=True)

    return put(rows, moved), put(slots, squares)


def _model_fn(
    features: Any, labels: Any, mode: str, params: Any
) -> kte.TPUEstimatorSpec:
    del params
    outputs = keras.layers.Dense(1)(features["ids"])
    loss = keras.ops.mean((outputs[:, 0] - labels) ** 2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(_RATE))
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def _input_fn(params: dict[str, int]) -> Iterator[Any]:
    size = params["batch_size"]
    ids = np.zeros((size, _LENGTH), "int32")
    while True:
        yield {"ids": ids}, np.zeros(size, "float32")
