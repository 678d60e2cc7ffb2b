"""Tests that runs of `evaluate` end where hooks and callbacks need it."""

import keras_tpu_estimator as kte  # isort: skip

import jax
import keras
import numpy as np
import pytest
from helpers import estimator_of
from keras import ops

from keras_tpu_estimator.engine.device import mode_devices
from keras_tpu_estimator.engine.inputs.stacking import StackSize

X = np.arange(24, dtype="float32")[:, None]


def model_fn(features, labels, mode, params):
    weight = keras.layers.Dense(1, kernel_initializer="ones")(features)
    y = kte.identity(weight, "y")
    loss = ops.mean((y - labels) ** 2)
    return kte.TPUEstimatorSpec(
        mode,
        loss=loss,
        predictions={"y": y},
        train_op=kte.minimize(keras.optimizers.SGD(0.0), loss),
    )


def input_fn(params):
    for first in range(0, len(X), 4):
        rows = X[first : first + 4]
        yield rows, rows


class Seen(kte.hooks.SessionRunHook):
    """Collects a tensor of each batch, and stops after a number of batches."""

    def __init__(self, most=None):
        self.rows = []
        self._most = most

    def before_run(self, run_context):
        return kte.hooks.SessionRunArgs("y")

    def after_run(self, run_context, run_values):
        self.rows.append(run_values.results.ravel())
        if len(self.rows) == self._most:
            run_context.request_stop()


class EverySecond(Seen):
    """A hook that ends runs after every second batch."""

    def due_steps(self, start):
        return range(start + 2, 100, 2)


class Batches(keras.callbacks.Callback):
    """Counts the batches that it receives."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def on_test_batch_end(self, batch, logs=None):
        self.count += 1


@pytest.fixture
def estimator(tmp_path):
    return estimator_of(model_fn, tmp_path, batch=4)


def test_hook_sees_every_batch(estimator):
    hook = Seen()
    result = estimator.evaluate(input_fn, hooks=[hook])
    np.testing.assert_allclose(np.concatenate(hook.rows), X.ravel())
    assert result == estimator.evaluate(input_fn)


def test_hook_stops_the_evaluation(estimator):
    hook = Seen(most=2)
    expected = estimator.evaluate(input_fn, steps=2)
    assert estimator.evaluate(input_fn, hooks=[hook]) == expected
    assert len(hook.rows) == 2


def test_hook_determines_the_length_of_runs(estimator):
    hook = EverySecond()
    estimator.evaluate(input_fn, hooks=[hook])
    assert [rows[-1] for rows in hook.rows] == [7, 15, 23]


def test_callback_is_called_for_every_batch(estimator):
    callback = Batches()
    estimator.evaluate(input_fn, hooks=[callback])
    assert callback.count == 6


def test_batches_of_other_sizes_have_separate_runs(estimator):
    def uneven(params):
        for size in (4, 4, 3, 4, 1):
            yield X[:size], X[:size]

    hook = Seen()
    estimator.evaluate(uneven, hooks=[hook])
    assert [len(rows) for rows in hook.rows] == [4, 4, 3, 4, 1]


def test_without_hooks_runs_stay_long(estimator, caplog):
    caplog.set_level("INFO", "keras_tpu_estimator")
    estimator.evaluate(input_fn, steps=6)
    lines = [r.getMessage() for r in caplog.records]
    assert sum("Evaluation [" in each for each in lines) == 1


def test_tpu_runs_have_the_length_of_the_device_loop(tmp_path):
    def loss_of(features, labels, mode, params):
        loss = ops.mean(kte.identity(features, "y"))
        return kte.TPUEstimatorSpec(mode, loss=loss)

    hook = Seen()
    estimator = estimator_of(loss_of, tmp_path, use_tpu=True, batch=8)
    estimator.evaluate(lambda params: iter([(X[:8], X[:8])] * 3), hooks=[hook])
    assert len(hook.rows) == 1


@pytest.mark.parametrize("use_tpu", [False, True])
def test_runs_of_a_loop_share_one_program(tmp_path, monkeypatch, use_tpu):
    compiled = []

    def note(event, seconds, fun_name="", **details):
        if event.endswith("backend_compile_duration"):
            compiled.append(fun_name.removeprefix("jit(").removesuffix(")"))

    jax.monitoring.register_event_duration_secs_listener(note)
    # Nine steps are two runs.
    monkeypatch.setattr(mode_devices, "_ON_CPU", StackSize(1, most=2**20))
    estimator = estimator_of(model_fn, tmp_path, use_tpu, batch=8, iterations=9)
    batch = np.zeros((8, 1), "float32")
    for _ in range(2):
        estimator.train(lambda params: (batch, batch), steps=9)
        estimator.evaluate(lambda params: (batch, batch), steps=9)
    assert compiled.count("train_steps") == 1
    assert compiled.count("evaluate_steps") == 1
