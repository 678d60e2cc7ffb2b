"""Tests that callbacks of calls on several threads see only their own values."""

import functools
import logging
import threading

import keras
import numpy as np
import pytest
from helpers import (
    batches_of,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    repeated,
)

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.engine.device import host_values

X, Y = regression_data()
STEPS = 16
# The seconds in which another call could wrongly change the values.
MOMENT = 0.1


def sgd():
    return keras.optimizers.SGD(0.05)


class Seen(keras.callbacks.Callback):
    """Reads the weights in training, in step with callbacks on other threads."""

    def __init__(self, meeting=None):
        super().__init__()
        self.meeting = meeting
        self.weights = []

    def on_train_batch_end(self, batch, logs=None):
        if self.meeting is not None:
            self.meeting.wait()
        for _ in range(2):
            self.weights.append(self.model.get_weights()[0].ravel().tolist())


class Zeroing(keras.callbacks.Callback):
    """Sets weights to zero, which must only affect its evaluation."""

    def __init__(self, meeting):
        super().__init__()
        self.meeting = meeting
        self.seen = []

    def on_test_batch_end(self, batch, logs=None):
        variables = self.model.trainable_variables
        before = [np.array(variable) for variable in variables]
        self.meeting.wait()
        threading.Event().wait(MOMENT)
        for variable, value in zip(variables, before, strict=True):
            np.testing.assert_array_equal(np.array(variable), value)
            variable.assign(value * 0)
        threading.Event().wait(MOMENT)
        self.seen.append(float(np.abs(np.array(variables[0])).max()))


def final(estimator):
    return checkpoints.read(estimator.model_dir)["dense/kernel"]


@pytest.mark.parametrize("use_tpu", [False, True], ids=["one", "eight"])
def test_evaluation_on_a_thread_does_not_change_training(tmp_path, use_tpu):
    settings = {"use_tpu": use_tpu, "config": {"keep_checkpoint_max": 0}}
    model_fn = model_fn_of(linear, sgd)
    reference = estimator_of(model_fn, tmp_path / "reference", **settings)
    right = Seen()
    reference.train(repeated(X, Y), max_steps=4)
    reference.train(repeated(X, Y), max_steps=STEPS, hooks=[right])

    estimator = estimator_of(model_fn, tmp_path / "ours", **settings)
    estimator.train(repeated(X, Y), max_steps=4)
    meeting = threading.Barrier(2, timeout=60)
    seen, zeroing = Seen(meeting), Zeroing(meeting)
    failed = []

    def evaluate():
        try:
            for _ in range((STEPS - 4) // 4):
                estimator.evaluate(batches_of(X, Y), steps=1, hooks=[zeroing])
        except BaseException as error:
            failed.append(error)
            meeting.abort()

    thread = threading.Thread(target=evaluate)
    thread.start()
    estimator.train(repeated(X, Y), max_steps=STEPS, hooks=[seen])
    thread.join()
    assert not failed
    assert zeroing.seen == [0.0] * 3
    assert seen.weights == right.weights
    np.testing.assert_array_equal(final(estimator), final(reference))


def test_two_threads_share_one_set_of_variables(tmp_path):
    is_tracing, is_evaluating = threading.Event(), threading.Event()

    def slowly(features, labels, mode, params):
        spec = model_fn_of(linear, sgd)(features, labels, mode, params)
        if mode == "train" and not is_tracing.is_set():
            is_tracing.set()
            is_evaluating.wait(3 * MOMENT)
        return spec

    class Evaluating(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            is_evaluating.set()

    def evaluate():
        is_tracing.wait()
        estimator.evaluate(batches_of(X, Y), steps=1, hooks=[Evaluating()])

    estimator = estimator_of(slowly, tmp_path)
    thread = threading.Thread(target=evaluate)
    thread.start()
    seen = Seen()
    estimator.train(repeated(X, Y), max_steps=4, hooks=[seen])
    thread.join()
    np.testing.assert_array_equal(seen.weights[-1], final(estimator).ravel())


class Observing(keras.callbacks.Callback):
    """Checks that the weights stay the same while training runs on another thread.

    Args:
        training: The thread of the training.
        wait: Waits until the training could have changed the weights. Defaults to
            waiting a fixed time.
    """

    def __init__(self, training, wait=None):
        super().__init__()
        self.training = training
        self.wait = wait or functools.partial(training.join, 3 * MOMENT)
        self.is_unchanged = False

    def on_test_begin(self, logs=None):
        self.before = self.model.get_weights()[0]

    def on_test_batch_end(self, batch, logs=None):
        kernel = self.model.trainable_variables[0]
        before = np.array(kernel)
        self.training.start()
        self.wait()
        self.is_unchanged = np.array_equal(np.array(kernel), before)


def test_training_waits_for_callbacks_that_read_the_weights(tmp_path):
    estimator = estimator_of(model_fn_of(linear, sgd), tmp_path)
    estimator.train(repeated(X, Y), max_steps=4)
    training = threading.Thread(
        target=estimator.train,
        args=[repeated(X, Y)],
        kwargs={"max_steps": STEPS},
    )
    observing = Observing(training)
    first = estimator.evaluate(batches_of(X, Y), steps=1, hooks=[observing])
    training.join()
    assert observing.is_unchanged
    assert first["global_step"] == 4
    last = estimator.evaluate(batches_of(X, Y), steps=1)
    assert last["global_step"] == STEPS
    assert last["loss"] < first["loss"]


class Delegating(keras.callbacks.Callback):
    """Reads and assigns weights on a separate thread."""

    def __init__(self):
        super().__init__()
        self.read = []

    def _act(self):
        kernel = self.model.trainable_variables[0]
        self.read.append(np.array(kernel))
        kernel.assign(kernel * 0)

    def on_train_batch_end(self, batch, logs=None):
        self.before = len(self.read)
        thread = threading.Thread(target=self._act)
        thread.start()
        thread.join()
        assert len(self.read) == self.before + 1


@pytest.mark.parametrize("reads_first", [False, True])
def test_thread_of_a_callback_sees_the_values_of_the_callback(tmp_path, reads_first):
    estimator = estimator_of(model_fn_of(linear, sgd), tmp_path, iterations=1)
    delegating = Delegating()
    if reads_first:
        delegating.on_train_batch_begin = lambda *_: delegating.model
    estimator.train(repeated(X, Y), max_steps=3, hooks=[delegating])
    assert len(delegating.read) == 3
    assert np.abs(delegating.read[1]).max() > 0
    # The last assignment is in the checkpoint.
    assert not final(estimator).any()


class Nested(keras.callbacks.Callback):
    """Trains during an evaluation."""

    def __init__(self, estimator):
        super().__init__()
        self.estimator = estimator

    def on_test_batch_end(self, batch, logs=None):
        kernel = self.model.trainable_variables[0]
        before = np.array(kernel)
        self.estimator.train(repeated(X, Y), max_steps=8)
        np.testing.assert_array_equal(np.array(kernel), before)


def test_training_in_a_callback_does_not_change_its_values(tmp_path):
    estimator = estimator_of(model_fn_of(linear, sgd), tmp_path)
    estimator.train(repeated(X, Y), max_steps=4)
    expected = estimator.evaluate(batches_of(X, Y))
    nested = Nested(estimator)
    result = estimator.evaluate(batches_of(X, Y), hooks=[nested])
    assert result == expected
    assert checkpoints.step_of(estimator.model_dir) == 8


def test_calls_that_wait_for_each_other_are_logged(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(host_values, "_PATIENCE_SECS", 0.01)
    estimator = estimator_of(model_fn_of(linear, sgd), tmp_path)
    estimator.train(repeated(X, Y), max_steps=4)
    training = threading.Thread(
        target=estimator.train, args=[repeated(X, Y)], kwargs={"max_steps": 8}
    )
    advice = "use a separate estimator for each of the two calls"

    def wait():
        while advice not in caplog.text and training.is_alive():
            training.join(MOMENT)

    with caplog.at_level(logging.WARNING, "keras_tpu_estimator"):
        observing = Observing(training, wait)
        estimator.evaluate(batches_of(X, Y), steps=1, hooks=[observing])
        training.join()
    assert advice in caplog.text
