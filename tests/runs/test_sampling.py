"""Tests that each call of `predict`, and each replica, draws its own numbers."""

import jax
import keras
import numpy as np
import pytest
from helpers import estimator_of
from keras import layers, ops

import keras_tpu_estimator as kte

PROMPTS = np.ones((16, 3), "float32")


def drawn(kind, size):
    if kind == "dropout":
        rows = layers.Dropout(0.5, seed=2)(ops.ones((size, 16)), training=True)
        return ops.sum(rows * 2.0 ** -np.arange(16), axis=1)
    if kind == "key":
        key = kte.jax_params("sampler", lambda: jax.random.key(3), trainable=False)
        return jax.random.uniform(key, (size,))
    seed = keras.random.SeedGenerator(1, name="sampler")
    return keras.random.uniform((size,), seed=seed)


def model_fn_of(kind, only_in_predict):
    def model_fn(features, labels, mode, params):
        y = layers.Dense(1, name="y")(features["x"])
        size = ops.shape(y)[0]
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, {"drawn": drawn(kind, size)})
        loss = ops.mean((y - labels) ** 2)
        if not only_in_predict:
            loss += 0 * ops.sum(drawn(kind, size))
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    return model_fn


def input_fn(params):
    return {"x": PROMPTS}, PROMPTS[:, :1]


def sampled(estimator, **kwargs):
    rows = estimator.predict(input_fn, **kwargs)
    return [float(row["drawn"]) for row in rows]


@pytest.mark.parametrize(
    ("kind", "only_in_predict", "use_tpu"),
    [
        ("generator", True, True),
        ("generator", False, False),
        ("dropout", True, False),
        ("key", False, True),
    ],
)
def test_calls_and_replicas_differ(kind, only_in_predict, use_tpu, tmp_path):
    model_fn = model_fn_of(kind, only_in_predict)
    made = [estimator_of(model_fn, tmp_path, use_tpu) for _ in range(2)]
    made[0].train(input_fn, steps=1)
    calls, again = ([sampled(each) for _ in range(3)] for each in made)
    assert calls == again
    # All prompts, and so the prompts of all replicas, have their own numbers.
    assert len({*calls[0], *calls[1], *calls[2]}) == 3 * len(PROMPTS)


def test_calls_with_a_seed_repeat(tmp_path):
    estimator = estimator_of(model_fn_of("generator", True), tmp_path)
    first, second, other = (sampled(estimator, seed=seed) for seed in (4, 4, 5))
    assert first == second
    assert not {*first} & {*other}
    # The seed does not depend on the state in a checkpoint.
    trained = estimator_of(model_fn_of("generator", False), tmp_path)
    assert sampled(trained.train(input_fn, steps=3), seed=4) == first


def test_batches_of_a_later_shape_draw_other_numbers(tmp_path):
    estimator = estimator_of(model_fn_of("generator", True), tmp_path, batch=4)

    def two_shapes(params):
        for length in (5, 7):
            yield {"x": PROMPTS[:4], "tokens": np.ones((4, length), "int32")}

    calls = [
        [row["drawn"] for row in estimator.predict(two_shapes, **kwargs)]
        for kwargs in ({}, {}, {"seed": 1})
    ]
    assert len({*map(float, np.ravel(calls))}) == 24


@pytest.mark.parametrize(
    ("seed", "error", "message"),
    [(-1, ValueError, "must be zero or positive"), ("a", TypeError, "must be an int")],
)
def test_invalid_seeds_are_refused(seed, error, message, tmp_path):
    estimator = estimator_of(model_fn_of("generator", True), tmp_path)
    with pytest.raises(error, match=f"`seed` {message}"):
        sampled(estimator, seed=seed)
