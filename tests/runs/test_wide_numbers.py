"""Tests 64-bit numbers at each place where user code passes one."""

import logging

import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of, regression_data
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.common import dtype_changes

X, Y = regression_data(examples=32)
LARGE = np.array([5_000_000_000])


def with_count(initial=None, init_fn=None, in_trace=None):
    """A linear model with an integer `c/n`."""

    def model_fn(features, labels, mode, params):
        n = np.zeros(1, "int64") if initial is None else initial
        kte.jax_params("c", {"n": n}, False)
        own = keras.Variable([1], dtype="int32", trainable=False, name="own")
        if in_trace is not None:
            own.assign(in_trace)
        y = keras.layers.Dense(1)(features)
        loss = ops.mean((y - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss),
            scaffold_fn=None
            if init_fn is None
            else lambda: kte.Scaffold(init_fn=init_fn),
        )

    return model_fn


def assigns(value):
    return lambda scaffold, session: session.assign({"c/n": value})


@pytest.mark.parametrize(
    "settings, name",
    [
        ({"initial": LARGE}, "'c/n'"),
        ({"initial": np.array([2**63], "uint64")}, "'c/n'"),
        ({"initial": np.array([1e300])}, "'c/n'"),
        ({"init_fn": assigns(LARGE)}, "'c/n'"),
        ({"in_trace": LARGE}, "'own'"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(settings, name, tmp_path):
    estimator = estimator_of(with_count(**settings), tmp_path)
    with pytest.raises(ValueError, match=f"{name} must fit"):
        estimator.train(batches_of(X, Y), steps=1)


def test_numbers_that_fit_are_kept(tmp_path):
    value = np.array([2**31 - 1])
    estimator = estimator_of(
        with_count(init_fn=assigns(value), in_trace=value), tmp_path
    )
    estimator.train(batches_of(X, Y), steps=1)
    assert estimator.get_variable_value("c/n") == value
    assert estimator.get_variable_value("own") == value


class Assigns(keras.callbacks.Callback):
    """Assigns a 64-bit number."""

    def on_train_batch_end(self, batch, logs=None):
        for variable in self.model.variables:
            if variable.path == "own":
                variable.assign(LARGE)


def test_number_assigned_by_a_callback_must_fit(tmp_path):
    estimator = estimator_of(with_count(), tmp_path)
    with pytest.raises(ValueError, match="'own' must fit int32"):
        estimator.train(batches_of(X, Y), steps=2, hooks=[Assigns()])


def test_rounded_unix_times_warn_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(dtype_changes, "_warned", set())

    def model_fn(features, labels, mode, params):
        y = keras.layers.Dense(1)(features["x"])
        loss = ops.mean((y - labels) ** 2) + 0 * ops.mean(features["time"])
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    def input_fn(params):
        times = 1_732_543_201.0 + np.arange(16)
        for _ in range(3):
            # Rounding fractions to float32 is normal.
            yield {"x": X[:16].astype("float64"), "time": times}, Y[:16]

    with caplog.at_level(logging.WARNING):
        estimator_of(model_fn, tmp_path).train(input_fn, steps=3)
    told = [r.getMessage() for r in caplog.records if "rounds" in r.message]
    assert len(told) == 1
    assert told[0].startswith("features['time'] has numbers that float32")


def test_features_that_overflow_are_refused(tmp_path):
    estimator = estimator_of(with_count(), tmp_path)
    x = np.full(X.shape, 1e300)
    with pytest.raises(ValueError, match="features must fit float32.*1e.300"):
        estimator.train(batches_of(x, Y), steps=1)


def test_global_step_must_fit_int32(tmp_path):
    first = estimator_of(with_count(), tmp_path / "first")
    first.train(batches_of(X, Y), steps=1)
    values = kte.checkpoints.read(first.model_dir)
    values.pop("global_step")
    late = str(tmp_path / "late")
    kte.checkpoints.save(late, 2**31 - 2, values)
    estimator = estimator_of(with_count(), late)
    estimator.train(batches_of(X, Y), steps=1)
    assert estimator.latest_checkpoint().endswith("model.ckpt-2147483647")
    with pytest.raises(ValueError, match="global step must be at most"):
        estimator.train(batches_of(X, Y), steps=1)
    assert estimator.latest_checkpoint().endswith("model.ckpt-2147483647")
    beyond = str(tmp_path / "beyond")
    kte.checkpoints.save(beyond, 2**31, values)
    with pytest.raises(ValueError, match="Received 2147483648 in"):
        estimator_of(with_count(), beyond).train(batches_of(X, Y), steps=1)
