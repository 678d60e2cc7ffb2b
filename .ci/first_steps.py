"""Trains and evaluates with the installed package and its dependencies."""

import pathlib
import tempfile

import keras_tpu_estimator as kte  # isort: split

import keras
import numpy as np
from keras import ops

if pathlib.Path.cwd() in pathlib.Path(kte.__file__).parents:
    raise SystemExit(f"Expected an installed package. Received: {kte.__file__}")


def model_fn(features, labels, mode, params):
    loss = ops.mean((keras.layers.Dense(1)(features) - labels) ** 2)
    train_op = None
    if mode == kte.ModeKeys.TRAIN:
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        train_op = optimizer.minimize(loss)
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(params):
    x = np.random.default_rng(0).normal(size=(64 * 50, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    for start in range(0, len(x), 64):
        yield x[start : start + 64], y[start : start + 64]


estimator = kte.TPUEstimator(
    model_fn,
    config=kte.RunConfig(model_dir=tempfile.mkdtemp()),
    train_batch_size=64,
    eval_batch_size=64,
)
estimator.train(input_fn, steps=50)
result = estimator.evaluate(input_fn)
if not (result["loss"] < 1e-3 and result["global_step"] == 50):
    raise SystemExit(f"Expected a loss below 0.001. Received: {result}")
