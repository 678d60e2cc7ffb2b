"""Tests how values that cores assign to one variable are combined."""

import itertools

import jax
import keras
import ml_dtypes
import numpy as np
import pytest
from helpers import slow
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator import EstimatorModel
from keras_tpu_estimator.base.mesh.all_cores import all_cores
from keras_tpu_estimator.base.mesh.cores import ONE_CORE
from keras_tpu_estimator.front_ends.keras.synchronization import synchronize

AGGREGATIONS = ("none", "mean", "sum", "only_first_replica")
# The initial value of each variable, near the limit of its dtype.
BEGINNINGS = {
    "int8": 90,
    "uint8": 200,
    "int32": 2**31 - 100,
    "uint32": 2**32 - 100,
    "bool": 1,
    "float16": 40_000,
    "bfloat16": 1,
    "float32": 0.5,
    "complex64": 0.5 + 2j,
}
# In float16, numbers there are 32 apart.
UNITS = dict.fromkeys(BEGINNINGS, 1) | {"float16": 32}
LAYOUTS = {
    "one core": lambda: ONE_CORE,
    "eight cores": all_cores,
    "shared slots": lambda: all_cores(shard_optimizer=True),
    "two a replica": lambda: all_cores(per_replica=2),
    "one replica": lambda: all_cores(per_replica=8),
}
X = np.array([3, 5, 0, 0, 0, 1, 0, 2], "float32")


def name_of(aggregation, dtype):
    return f"{aggregation}_of_{dtype}"


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def model_fn(features, labels, mode, params):
    total = ops.sum(features)
    for aggregation, dtype in itertools.product(AGGREGATIONS, BEGINNINGS):
        variable = keras.Variable(
            np.array(BEGINNINGS[dtype], dtype_of(dtype)),
            dtype=dtype,
            trainable=False,
            aggregation=aggregation,
            name=name_of(aggregation, dtype),
        )
        if dtype == "bool":
            variable.assign(ops.logical_xor(variable, total > 2))
        else:
            variable.assign_add(ops.cast(total * UNITS[dtype], dtype))
    y = keras.layers.Dense(1)(features[:, None])
    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(mode, predictions={"y": y})
    loss = ops.mean(y**2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.1))
    train_op = None
    if mode == kte.ModeKeys.TRAIN:
        train_op = optimizer.minimize(loss)
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def wide_of(dtype):
    return "complex128" if dtype == "complex64" else "float64"


def of_core(dtype, parts):
    """The value that one core with these micro-batches assigns."""
    value = np.array(BEGINNINGS[dtype], dtype_of(dtype))
    for part in parts:
        total = part.sum()
        if dtype == "bool":
            value = value ^ (total > 2)
        else:
            value = value + (total * UNITS[dtype]).astype(value.dtype)
    return value


def together(aggregation, dtype, values):
    """The combined value by definition, in exact numbers."""
    if len(values) == 1:
        return values[0]
    is_float = dtype_of(dtype).kind not in "biu"
    if aggregation == "only_first_replica" or (aggregation == "none" and not is_float):
        return values[0]
    wide = wide_of(dtype) if is_float else "int64"
    numbers = np.array(values).astype(wide)
    if aggregation != "sum":
        mean = numbers.mean()
        return mean if is_float else np.floor(mean)
    before = np.array(BEGINNINGS[dtype])
    if dtype == "bool":
        return bool(before) ^ bool(np.any(numbers != before))
    return before + (numbers - before).sum()


@pytest.mark.rows(4)
@pytest.mark.parametrize(
    "mode, micro_batches, layout",
    [
        *(("train", 1, layout) for layout in LAYOUTS),
        *(slow("train", 2, each) for each in ("one core", "eight cores")),
        ("train", 2, "two a replica"),
        *(slow("eval", 1, "one core"), ("eval", 1, "shared slots")),
        *(slow("infer", 1, "eight cores"), ("infer", 1, "one replica")),
    ],
)
def test_assigned_values_are_combined_by_definition(layout, mode, micro_batches):
    cores = LAYOUTS[layout]()
    x = np.repeat(X, micro_batches)
    model = EstimatorModel.from_model_fn(
        model_fn,
        {"use_tpu": layout != "one core"},
        kte.RunConfig(micro_batches=micro_batches),
        cores,
        seed=1,
    )
    labels = np.zeros(len(x), bool) if mode == "infer" else None
    step = model.prepare(mode, x, labels)
    values = model.program.store.initial_values()
    changed, _ = jax.jit(step.function)(values, x, labels)

    replicas = cores.topology.num_replicas
    parts = x.reshape(replicas, micro_batches, -1)
    for aggregation, dtype in itertools.product(AGGREGATIONS, BEGINNINGS):
        name = name_of(aggregation, dtype)
        expected = together(
            aggregation, dtype, [of_core(dtype, part) for part in parts]
        )
        assert changed[name].dtype == dtype_of(dtype), name
        np.testing.assert_allclose(
            np.array(changed[name], wide_of(dtype)),
            np.array(expected, wide_of(dtype))
            .astype(dtype_of(dtype))
            .astype(wide_of(dtype)),
            rtol=1e-6,
            err_msg=name,
        )


def test_equal_values_are_not_communicated():
    variables = {
        name: keras.Variable(0, dtype=dtype, aggregation=aggregation)
        for name, dtype, aggregation in (
            ("count", "int32", "none"),
            ("rate", "float32", "mean"),
            ("own", "float32", "mean"),
            ("seen", "int32", "sum"),
        )
    }
    values = {name: jax.numpy.ones((), v.dtype) for name, v in variables.items()}

    def counted(cores):
        differing = {name: name == "own" for name in values}
        return jax.make_jaxpr(
            lambda v: synchronize(v, v, variables, cores, differing),
            axis_env=list(cores.axis_sizes),
        )(values)

    names = [e.primitive.name for e in counted(all_cores()).jaxpr.eqns]
    # One variable has a mean, and another the sum of changes.
    assert sum(name.startswith("psum") for name in names) == 2
    assert not counted(ONE_CORE).jaxpr.eqns
