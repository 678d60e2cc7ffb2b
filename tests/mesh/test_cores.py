"""Tests that several cores have the results of one, each with its own batch."""

import jax
import keras
import numpy as np
from helpers import (
    batches_of,
    estimator_of,
    model_fn_of,
    regression_data,
    repeated,
    squared_error,
)
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.mesh.all_cores import all_cores
from keras_tpu_estimator.base.mesh.cores import ONE_CORE

X, Y = regression_data(examples=128)


def two_layers(x, is_training):
    hidden = keras.layers.Dense(8, activation="tanh")(x)
    return keras.layers.Dense(1)(hidden)


def loss_curve(use_tpu, model_dir, network=two_layers, **settings):
    """The loss of every step, read by a hook."""

    class Losses(kte.hooks.SessionRunHook):
        def after_run(self, run_context, run_values):
            losses.append(float(run_context.session.run("loss")))

    losses = []
    model_fn = model_fn_of(network, lambda: keras.optimizers.Adam(0.02))
    estimator = estimator_of(
        model_fn, model_dir, use_tpu, batch=32, iterations=1, **settings
    )
    estimator.train(repeated(X, Y), hooks=[Losses()], steps=20)
    return np.array(losses), estimator


def test_there_are_eight_cores():
    assert all_cores().topology.num_replicas == len(jax.devices()) == 8


def test_one_core_and_eight_have_the_same_loss_curve(tmp_path):
    one, _ = loss_curve(False, tmp_path / "one")
    eight, estimator = loss_curve(True, tmp_path / "eight")
    np.testing.assert_allclose(eight, one, rtol=1e-5)
    assert one[-1] < one[0] / 2
    # The evaluation has a partial last batch: 128 = 5 * 24 + 8.
    results = [
        estimator_of(
            model_fn_of(two_layers), tmp_path / "eight", use_tpu, batch=24
        ).evaluate(batches_of(X, Y))
        for use_tpu in (False, True)
    ]
    np.testing.assert_allclose(results[0]["loss"], results[1]["loss"], rtol=1e-5)


def test_each_core_sees_its_own_batch(tmp_path):
    def model_fn(features, labels, mode, params):
        assert features.shape == (2, 3) and labels.shape == (2, 1)
        assert params["batch_size"] == 2 and params["use_tpu"] is True
        outputs = two_layers(features, True)
        # Differs from core to core.
        own = kte.cross_replica_sum(ops.sum(features))
        mean = kte.cross_replica_mean({"x": ops.sum(features)})["x"]
        loss = squared_error(outputs, labels)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss),
            host_call=(
                lambda *tensors: seen.append(tensors),
                [own[None], mean[None], features],
            ),
        )

    seen = []
    estimator = estimator_of(model_fn, tmp_path, use_tpu=True)
    estimator.train(repeated(X, Y), steps=1)
    total, mean, features = seen[0]
    np.testing.assert_array_equal(features, X[:16])
    np.testing.assert_allclose(total, np.full(8, X[:16].sum()), rtol=1e-5)
    np.testing.assert_allclose(mean, total / 8, rtol=1e-5)


def test_batch_normalization_averages_its_statistics(tmp_path):
    def network(x, is_training):
        x = keras.layers.BatchNormalization(momentum=0.0)(x, training=is_training)
        return keras.layers.Dense(1)(x)

    _, estimator = loss_curve(True, tmp_path, network)
    # Twenty steps of 32 end with the last quarter of the data.
    np.testing.assert_allclose(
        estimator.get_variable_value("batch_normalization/moving_mean"),
        X[96:].mean(0),
        rtol=1e-4,
        atol=1e-6,
    )


def test_other_state_stays_equal_on_all_cores(tmp_path):
    def network(x, is_training):
        counts = {
            (aggregation, dtype): keras.Variable(
                np.zeros((), dtype),
                trainable=False,
                aggregation=aggregation,
                name=f"{aggregation}_{dtype}",
            )
            for aggregation, dtype in (
                ("sum", "float32"),
                ("sum", "int32"),
                ("mean", "float32"),
                ("only_first_replica", "float32"),
                ("none", "int32"),
            )
        }
        if is_training:
            for count in counts.values():
                count.assign_add(ops.cast(ops.sum(x), count.dtype))
        return keras.layers.Dense(1)(x)

    estimator = estimator_of(model_fn_of(network), tmp_path, use_tpu=True, batch=8)
    x = np.arange(8, dtype="float32")[:, None]
    estimator.train(repeated(x, x), steps=2)
    values = kte.checkpoints.read(estimator.latest_checkpoint())
    assert values["sum_float32"] == values["sum_int32"] == 56
    assert values["mean_float32"] == 7
    assert values["only_first_replica_float32"] == 0
    assert values["none_int32"] == 0


def test_cores_of_a_users_distribution_are_used(tmp_path):
    devices = keras.distribution.list_devices()[:4]
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=devices)
    )
    try:
        estimator = estimator_of(model_fn_of(two_layers), tmp_path, True)
        estimator.train(repeated(X, Y), steps=2)
        assert estimator._context.mode_devices.cores.topology.num_replicas == 4
    finally:
        keras.distribution.set_distribution(None)


def test_one_shard_uses_one_core(tmp_path):
    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(num_shards=1), model_dir=str(tmp_path)
    )
    estimator = kte.TPUEstimator(
        model_fn_of(two_layers), config=config, train_batch_size=5
    )
    estimator.train(repeated(X, Y), steps=1)
    assert estimator._context.mode_devices.cores.topology.num_replicas == 1


def test_training_moves_between_one_core_and_eight(tmp_path):
    for use_tpu in (True, False, True):
        estimator = estimator_of(model_fn_of(two_layers), tmp_path, use_tpu, batch=32)
        estimator.train(repeated(X, Y), steps=2)
    assert estimator.get_variable_value("global_step") == 6


def test_cores_have_the_type_of_their_devices():
    assert all_cores().platform == ONE_CORE.platform == "cpu"
