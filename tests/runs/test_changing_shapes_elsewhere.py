"""Tests changing shapes with other front ends, layouts, plans and exports."""

import logging

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from helpers import estimator_of

import keras_tpu_estimator as kte

LENGTHS = [3, 5, 5, 4, 6, 3]
LONGEST = max(LENGTHS)


def batches(fixed=None, size=8):
    """Batches of several lengths, or zero-padded to one length."""
    rng = np.random.default_rng(0)
    for length in LENGTHS:
        ids = rng.integers(1, 9, (size, length)).astype("int32")
        if fixed:
            ids = np.pad(ids, ((0, 0), (0, fixed - length)))
        yield ids, (ids.sum(1, keepdims=True) / 20).astype("float32")


def changing(params=None):
    return batches()


def padded(params=None):
    return batches(LONGEST)


def of_jax(features, labels, mode, params):
    def init(key):
        return {
            "table": jax.random.normal(key, (9, 4)),
            "out": jnp.full((4, 1), 0.1),
        }

    p = kte.jax_params("net", init)
    mask = (features > 0)[..., None]
    y = jnp.sum(p["table"][features] * mask, 1) @ p["out"]
    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(mode, {"y": y})
    loss = jnp.mean((y - labels) ** 2)
    train_op = None
    if mode == kte.ModeKeys.TRAIN:
        optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.01))
        train_op = optimizer.minimize(loss)
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def compiled():
    keras.utils.set_random_seed(0)
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, 4, mask_zero=True, name="table")(ids)
    x = keras.layers.GRU(4, name="gru")(x)
    outputs = keras.layers.Dense(1, name="out")(x)
    model = keras.Model(ids, outputs)
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def of_compiled_model(model_dir):
    config = kte.RunConfig(model_dir=str(model_dir), tf_random_seed=1)
    return kte.from_keras(
        compiled(),
        config=config,
        use_tpu=False,
        train_batch_size=8,
        eval_batch_size=8,
        predict_batch_size=8,
    )


MAKE = {
    "jax": lambda model_dir: estimator_of(of_jax, model_dir, batch=8),
    "two cores a replica": lambda model_dir: kte.TPUEstimator(
        of_jax,
        config=kte.RunConfig(
            model_dir=str(model_dir),
            tf_random_seed=7,
            layout_map={"net/table": (None, "model")},
            tpu_config=kte.TPUConfig(num_cores_per_replica=2),
        ),
        train_batch_size=8,
        eval_batch_size=8,
        predict_batch_size=8,
    ),
    "from_keras": of_compiled_model,
}


@pytest.mark.rows(2)
@pytest.mark.parametrize("name", MAKE)
def test_each_shape_matches_a_fixed_length(tmp_path, name):
    made = MAKE[name](tmp_path / "many")
    made.train(changing, steps=6)
    one = MAKE[name](tmp_path / "one")
    one.train(padded, steps=6)
    own, others = (kte.checkpoints.read(e.model_dir) for e in (made, one))
    assert own.keys() == others.keys()
    for path, value in own.items():
        np.testing.assert_allclose(value, others[path], rtol=1e-3, atol=1e-5)
    assert made.evaluate(changing) == pytest.approx(made.evaluate(padded), rel=1e-4)
    rows, wanted = (
        [np.ravel(jax.tree.leaves(row)[0]) for row in made.predict(input_fn)]
        for input_fn in (changing, padded)
    )
    np.testing.assert_allclose(rows, wanted, rtol=1e-4)


def test_keras_model_of_a_model_fn_fits_each_shape():
    losses = []
    for input_fn in (changing, padded):
        model = kte.EstimatorModel.from_model_fn(of_jax, seed=1)
        model.prepare(kte.ModeKeys.TRAIN, *next(input_fn()))
        model.initialize()
        history = model.fit(
            input_fn(),
            steps_per_epoch=len(LENGTHS),
            shuffle=False,
            verbose=0,
        )
        losses.append(history.history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_each_shape_has_an_executable(tmp_path, caplog):
    caplog.set_level(logging.INFO, "keras_tpu_estimator")

    def made(name, **config):
        return estimator_of(
            of_jax, tmp_path / name, batch=8, iterations=1, config=config
        )

    stored = made("stored", executables=str(tmp_path / "executables"))
    plain = made("plain")
    for each in (stored, plain):
        each.train(changing)
    looked_for = [
        each
        for each in caplog.records
        if "No executable for mode 'train'" in each.getMessage()
    ]
    assert len(looked_for) == len({*LENGTHS})
    own, others = (kte.checkpoints.read(e.model_dir) for e in (stored, plain))
    for path, value in own.items():
        np.testing.assert_array_equal(value, others[path])


def test_shards_of_an_input_must_fit_each_shape(tmp_path):
    config = kte.RunConfig(
        model_dir=str(tmp_path),
        tpu_config=kte.TPUConfig(
            num_cores_per_replica=2,
            input_partition_dims=[[1, 2], None],
            per_host_input_for_training=kte.InputPipelineConfig.PER_HOST_V2,
        ),
    )
    made = kte.TPUEstimator(of_jax, config=config, train_batch_size=8)
    made.train(
        lambda params: (
            (ids[:2, :length], y[:2])
            for (ids, y), length in zip(padded(), (2, 4), strict=False)
            for _ in range(4)
        ),
        steps=9,
    )
    assert made.get_variable_value("global_step") == 2
