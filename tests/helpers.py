"""Small models, inputs and checks of errors for several tests, and a gate."""

import contextlib
import itertools
import json
import threading

import keras
import numpy as np
import pytest
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.hooks.loop_results import LoopResults
from keras_tpu_estimator.base.hosts import starting
from keras_tpu_estimator.base.hosts.cluster import Cluster


def slow(*values):
    """A row of a table that runs only among the slow tests."""
    return pytest.param(*values, marks=pytest.mark.slow)


def some_slow(rows, seldom):
    """Returns the rows of a table, with the named rows marked as slow."""
    return [slow(row) if row in seldom else row for row in rows]


def each_once(*columns):
    """Returns rows of all combinations, most of which are slow tests.

    In a normal run each entry of the longest column occurs once. Entries of shorter
    columns occur in several rows.
    """
    count = max(map(len, columns))
    tried = {tuple(n % len(each) for each in columns) for n in range(count)}
    numbers = itertools.product(*(range(len(each)) for each in columns))
    rows = {
        row: [column[n] for column, n in zip(columns, row, strict=True)]
        for row in numbers
    }
    return [
        pytest.param(*values) if row in tried else slow(*values)
        for row, values in rows.items()
    ]


@contextlib.contextmanager
def refused(error, words):
    """Expects an error whose message has all words, in their order.

    Words are separated by spaces. They are what a user needs, not the whole sentence.
    """
    with pytest.raises(error) as caught:
        yield caught
    message, position = str(caught.value), 0
    for word in words.split():
        found = message.find(word, position)
        assert found >= 0, f"{word!r} is missing, after {position}, in: {message}"
        position = found + len(word)


def regression_data(examples=64, size=3, seed=0):
    """Features and labels of a noiseless linear function."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, size)).astype("float32")
    y = (x @ np.arange(1, size + 1) + 0.5).astype("float32")[:, None]
    return x, y


def batches_of(x, y=None):
    """An input_fn over arrays, in order, with a smaller last batch."""

    def input_fn(params):
        size = params["batch_size"]
        for start in range(0, len(x), size):
            rows = slice(start, start + size)
            yield x[rows] if y is None else (x[rows], y[rows])

    return input_fn


def repeated(x, y):
    """An input_fn that repeats arrays forever, in full batches."""

    def input_fn(params):
        size = params["batch_size"]
        while True:
            for start in range(0, len(x) - size + 1, size):
                yield x[start : start + size], y[start : start + size]

    return input_fn


def squared_error(outputs, labels):
    """The mean squared error, the loss of the models here."""
    return ops.mean((outputs - labels) ** 2)


def model_fn_of(network, optimizer=None, loss_fn=squared_error):
    """A model_fn around a network of (features, is_training)."""

    def model_fn(features, labels, mode, params):
        outputs = network(features, mode == kte.ModeKeys.TRAIN)
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, predictions={"y": outputs})
        loss = loss_fn(outputs, labels)
        train_op = None
        if mode == kte.ModeKeys.TRAIN:
            made = optimizer() if optimizer else keras.optimizers.SGD(0.05)
            train_op = kte.CrossShardOptimizer(made).minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def linear(features, is_training):
    """A linear layer that starts from zero."""
    del is_training
    return keras.layers.Dense(1, kernel_initializer="zeros")(features)


def estimator_of(model_fn, model_dir, use_tpu=False, batch=16, **settings):
    """A TPUEstimator with one batch size and few files."""
    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(iterations_per_loop=settings.pop("iterations", 4)),
        model_dir=str(model_dir),
        tf_random_seed=settings.pop("seed", 7),
        save_summary_steps=settings.pop("save_summary_steps", None),
        log_step_count_steps=settings.pop("log_step_count_steps", None),
        **settings.pop("config", {}),
    )
    return kte.TPUEstimator(
        model_fn,
        config=config,
        use_tpu=use_tpu,
        train_batch_size=batch,
        eval_batch_size=batch,
        predict_batch_size=batch,
        **settings,
    )


class LoopOf:
    """A loop whose step and loss are the current values of a dict."""

    def __init__(self, values):
        self.values = values

    @property
    def results(self):
        loss = np.atleast_1d(np.float32(self.values.get("loss", np.nan)))
        return LoopResults(int(self.values["global_step"]), (loss,))


def in_cluster(monkeypatch, tf_config):
    """Sets TF_CONFIG and pretends that its cluster has been joined."""
    if not isinstance(tf_config, str):
        tf_config = json.dumps(tf_config)
    monkeypatch.setenv("TF_CONFIG", tf_config)
    monkeypatch.setattr(starting, "ensure_started", Cluster)


def open_when_joined(monkeypatch, gate, name):
    """Opens a gate as soon as a thread joins the threads with a name."""
    join = threading.Thread.join

    def opening(thread, timeout=None):
        if thread.name == name:
            gate.set()
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", opening)
