"""Tests the input of a step and its shards on the cores."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from helpers import each_once, estimator_of, regression_data
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.mesh.all_cores import all_cores
from keras_tpu_estimator.engine.inputs.unbatched import Unbatched
from keras_tpu_estimator.engine.program.steps import BatchLayout

KERNEL, BIAS = "dense/kernel", "dense/bias"


def inputs():
    features = {"x": np.ones((16, 3)), "rates": Unbatched(np.ones(5, "int64"))}
    return features, np.ones(16, "int32")


def as_structs(nest):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), nest)


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_shapes_are_equivalent_to_arrays(is_split, micro_batches):
    features, labels = inputs()
    if is_split or micro_batches > 1:
        del features["rates"]
    layout = BatchLayout(all_cores(), is_split, use_tpu=True)
    made = layout.step_input(features, labels)
    shaped = layout.step_input(*as_structs((features, labels)))
    assert shaped.key == made.key
    assert shaped.additional == made.additional
    parts = jax.tree.leaves(shaped.of_one_call(micro_batches))
    assert all(isinstance(part, jax.ShapeDtypeStruct) for part in parts)
    # Wide dtypes become narrow on devices, for shapes and arrays.
    on_device = jax.tree.map(jnp.asarray, (features, labels))
    assert layout.step_input(*on_device).key == made.key
    cut = made.of_one_call(micro_batches)
    assert as_structs(cut) == shaped.of_one_call(micro_batches)


def linear_sum(reduction):
    """A model whose loss is divided by the number of examples of all cores."""

    def model_fn(features, labels, mode, params):
        context = params["context"]
        assert context.num_replicas == (
            context.num_hosts * context.num_of_replicas_per_host
        )
        total = params["batch_size"] * context.num_replicas
        outputs = keras.layers.Dense(1, kernel_initializer="zeros")(features)
        if mode == kte.ModeKeys.PREDICT:
            count = kte.cross_replica_sum(ops.ones_like(outputs[:1]))
            all_rows = ops.ones_like(outputs) * total
            cores = ops.ones_like(outputs) * count
            return kte.TPUEstimatorSpec(
                mode, {"y": outputs, "total": all_rows, "cores": cores}
            )
        loss = ops.sum((outputs - labels) ** 2) / total
        if mode == kte.ModeKeys.EVAL:
            mine = kte.cross_replica_sum(loss)
            return kte.TPUEstimatorSpec(
                mode,
                loss=mine,
                eval_metrics=(
                    lambda loss: {"sum": kte.metrics.mean(loss)},
                    [ops.reshape(mine, [1])],
                ),
            )
        if reduction == "mean":
            loss = loss * context.num_replicas
        optimizer = kte.CrossShardOptimizer(
            keras.optimizers.SGD(0.1), reduction=reduction
        )
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    return model_fn


def in_batches(x, y, size):
    for start in range(0, len(x), size):
        yield x[start : start + size], y[start : start + size]


def trained(x, y, size):
    """The weights after one gradient step with each batch's mean gradient."""
    kernel, bias = np.zeros((3, 1)), np.zeros(1)
    for rows, labels in in_batches(x, y, size):
        errors = 2 * (rows @ kernel + bias - labels) / len(rows)
        kernel, bias = (
            kernel - 0.1 * rows.T @ errors,
            bias - 0.1 * errors.sum(0),
        )
    return kernel, bias


@pytest.mark.parametrize(
    ("reduction", "rest"), each_once(["sum", "mean"], [1, 5, 12, 8])
)
def test_remainder_is_the_batch_of_one_replica(tmp_path, reduction, rest):
    x, y = regression_data(examples=16 + rest)
    estimator = estimator_of(linear_sum(reduction), tmp_path, use_tpu=True)
    estimator.train(lambda params: in_batches(x, y, params["batch_size"]), steps=9)
    assert estimator.get_variable_value("global_step") == 2
    kernel, bias = trained(x, y, 16)
    np.testing.assert_allclose(estimator.get_variable_value(KERNEL), kernel, rtol=1e-4)
    np.testing.assert_allclose(estimator.get_variable_value(BIAS), bias, rtol=1e-4)
    result = estimator.evaluate(lambda params: in_batches(x, y, params["batch_size"]))
    expected = np.mean((x @ kernel + bias - y) ** 2)
    np.testing.assert_allclose(result["loss"], expected, rtol=1e-4)


def test_remainder_in_prediction_is_padded_for_all_cores(tmp_path):
    x, y = regression_data(examples=21)
    estimator = estimator_of(linear_sum("mean"), tmp_path, use_tpu=True)
    rows = list(
        estimator.predict(lambda params: in_batches(x, y, params["batch_size"]))
    )
    assert len(rows) == 21
    assert {(row["total"].item(), row["cores"].item()) for row in rows} == {(16.0, 8.0)}
