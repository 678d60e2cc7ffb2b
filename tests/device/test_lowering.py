"""Tests the compiled loop when it is lowered from shapes."""

import dataclasses
import types

import jax
import keras
import numpy as np
import pytest
from helpers import each_once, estimator_of, linear, model_fn_of, regression_data

from keras_tpu_estimator.base.mesh.all_cores import all_cores
from keras_tpu_estimator.engine.device import shapes

X, Y = regression_data(examples=32)
LAYOUTS = {
    "one core": {"use_tpu": False},
    "eight": {"use_tpu": True},
    "shared slots": {"use_tpu": True, "config": {"shard_optimizer": True}},
    "debugged": {"use_tpu": True, "config": {"debug_nans": True}},
}
MODES = ("train", "eval", "infer")


def staged(runtime, mode):
    """Data on the devices, and the same data on the host."""
    if mode == "infer":
        nest = X, np.zeros(len(X), bool)
        return runtime.loop.put_one(*nest), nest
    nest = X[None].repeat(3, 0), Y[None].repeat(3, 0)
    return runtime.loop.put(mode, *nest), nest


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_shapes_are_those_of_device_data(tmp_path, layout, mode):
    runtime = estimator_of(
        model_fn_of(linear), tmp_path, batch=32, **LAYOUTS[layout]
    )._context.runtime
    data, nest = staged(runtime, mode)
    found = shapes.of_steps(runtime.program.layout(mode), mode, *nest)
    for array, shape in zip(jax.tree.leaves(data), jax.tree.leaves(found), strict=True):
        assert (array.shape, array.dtype) == (shape.shape, shape.dtype)
        # On one core, the compiled function itself copies few steps.
        if isinstance(array, jax.Array):
            assert array.sharding == shape.sharding


@pytest.mark.parametrize(("mode", "layout"), each_once([*MODES], [*LAYOUTS]))
def test_lowered_program_is_the_one_that_runs(tmp_path, layout, mode):
    runtime = estimator_of(
        model_fn_of(linear), tmp_path, batch=32, **LAYOUTS[layout]
    )._context.runtime
    data, nest = staged(runtime, mode)
    one = nest if mode == "infer" else jax.tree.map(lambda a: a[0], nest)
    step = runtime.prepare(mode, *one)
    batches = shapes.of_steps(runtime.program.layout(mode), mode, *nest)
    compiled = runtime.loop.trace(step, batches).lower().compile()
    with runtime.values.borrowed(step, None) as borrowed:
        values = dict(borrowed)
    assigned, others = step.split(values)
    if mode == "infer":
        took = compiled(assigned, others, batches_of(data, batches))
        ran = runtime.loop.predict(step, assigned, others, data)
        np.testing.assert_array_equal(
            took[1]["predictions"]["y"], ran[1]["predictions"]["y"]
        )
        return
    metrics = runtime.program.metrics_state()
    ran = runtime.loop.run(
        *(step, jax.tree.map(jax.numpy.copy, values), metrics, data),
        steps=range(len(nest[1])),
    )
    span = np.array([0, len(nest[1])], "int32")
    took = compiled(assigned, others, metrics, span, batches_of(data, batches))
    if layout == "debugged" and mode == "train":
        took = took[1]
    np.testing.assert_array_equal(took[2], ran[2])


def batches_of(data, batches):
    """Data with the sharding of a compiled program."""
    return jax.tree.map(
        lambda array, shape: jax.device_put(array, shape.sharding),
        data,
        batches,
    )


def test_batches_of_hosts_form_the_global_batch(tmp_path):
    layout = estimator_of(
        model_fn_of(linear), tmp_path, use_tpu=True, batch=32
    )._context.mode_devices.layout("train")
    topology = dataclasses.replace(layout.cores.topology, num_hosts=4)
    cores = dataclasses.replace(layout.cores, topology=topology)
    features = {"id": jax.ShapeDtypeStruct((5, 8), "int64")}
    found, labels = shapes.of_steps(
        dataclasses.replace(layout, cores=cores), "train", features, None, True
    )
    assert labels is None
    assert found["id"].shape == (5, 32)
    assert found["id"].dtype == "int32"  # The dtype on devices.
    assert found["id"].sharding == cores.batch_sharding(1)


def test_tables_have_the_same_number_of_rows_on_each_core(tmp_path):
    places = {
        "table": all_cores().rows_sharding,
        "kernel": all_cores().replicated,
    }
    store = types.SimpleNamespace(
        rows={"table": 13},
        variables={
            "table": keras.Variable("zeros", shape=(13, 2)),
            "kernel": keras.Variable("zeros", shape=(13, 2)),
        },
    )
    found = shapes.of_values(store, places)
    assert found["table"].shape == (16, 2)
    assert found["kernel"].shape == (13, 2)
