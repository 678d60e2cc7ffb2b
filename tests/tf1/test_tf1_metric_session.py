"""Tests `metric_fn`s of `tf.metrics` in sessions on the host."""

import keras_tpu_estimator as kte  # isort: skip

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import estimator, fed, plain_session, variable

from keras_tpu_estimator.tf1.host import metric_session

LABELS = np.random.default_rng(0).integers(0, 2, 40)
SCORES = np.random.default_rng(1).random(40).astype("float32")


def of_metrics(metric_fn, tmp_path, as_dict=False, **settings):
    """An estimator whose features are scores."""

    def model_fn(features, labels, mode, params):
        scores = features * variable("one", 1) ** 0
        tensors = [labels, scores]
        if as_dict:
            tensors = {"labels": labels, "scores": scores}
        loss = tf.reduce_mean(scores)
        return kte.tf1.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metric_fn, tensors)
        )

    return estimator(model_fn, tmp_path, **settings)


def batches_of(*sizes, start=0):
    """Batches of the labels and scores."""
    ends = np.cumsum([start, *sizes])
    rows = [slice(a, b) for a, b in zip(ends[:-1], ends[1:], strict=True)]
    return fed([(SCORES[each], LABELS[each]) for each in rows])


def several(labels, scores):
    """Metrics with many kinds of variables, and a Python function."""
    classes = tf.cast(scores > 0.5, tf.int64)
    tf.debugging.assert_equal(labels.dtype, tf.int64)
    halves = tf.py_func(lambda a: a / 2, [scores], tf.float32)
    return {
        "accuracy": tf.metrics.accuracy(labels, classes),
        "auc": tf.metrics.auc(labels, scores, num_thresholds=50),
        "iou": tf.metrics.mean_iou(labels, classes, num_classes=2),
        "half": tf.metrics.mean(halves),
    }


@functools.cache
def in_a_session(*sizes):
    """The metrics of the first examples in a TensorFlow session."""
    values = {}
    with tf.Graph().as_default():
        labels = tf.placeholder(tf.int64, [None])
        scores = tf.placeholder(tf.float32, [None])
        metrics = several(labels, scores)
        with plain_session() as session:
            session.run(tf.local_variables_initializer())
            start = 0
            for size in sizes:
                rows = slice(start, start + size)
                session.run(
                    [update for _, update in metrics.values()],
                    {labels: LABELS[rows], scores: SCORES[rows]},
                )
                start += size
            values = session.run({n: value for n, (value, _) in metrics.items()})
    return values


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("use_tpu", [False, True])
def test_metrics_match_a_session(tmp_path, as_dict, use_tpu, monkeypatch):
    # The second evaluation reuses the first one's sessions.
    monkeypatch.setattr(metric_session, "_MAX_EVALUATIONS", 1)
    made = of_metrics(several, tmp_path, as_dict, use_tpu=use_tpu)
    # The batches have two sizes, and the counts continue.
    result = made.evaluate(batches_of(16, 16, 8))
    for name, value in in_a_session(16, 16, 8).items():
        np.testing.assert_allclose(result[name], value, rtol=1e-6)
    # The next evaluation starts to count again.
    again = made.evaluate(batches_of(16))
    for name, value in in_a_session(16).items():
        np.testing.assert_allclose(again[name], value, rtol=1e-6)


def test_the_function_is_called_once_for_each_size_of_batches(tmp_path):
    sizes = []

    def metric_fn(labels, scores):
        sizes.append(labels.shape.as_list())
        return {"mean": tf.metrics.mean(scores)}

    made = of_metrics(metric_fn, tmp_path)
    made.evaluate(batches_of(16, 16, 8))
    assert sizes == [[16], [8]]


def test_many_evaluations_share_sessions(tmp_path, monkeypatch):
    monkeypatch.setattr(metric_session, "_MAX_EVALUATIONS", 2)
    calls = []

    def metric_fn(labels, scores):
        calls.append(labels)
        return several(labels, scores)

    made = of_metrics(metric_fn, tmp_path)
    for _ in range(4):
        result = made.evaluate(batches_of(16, 16, 8))
        for name, value in in_a_session(16, 16, 8).items():
            np.testing.assert_allclose(result[name], value, rtol=1e-6)
    # Two for each of the last evaluations, which may continue.
    assert len(calls) == 2 * 2


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ([], "a dict from names to metrics"),
        ({"a": 1.0}, "'a' must be a .value, update_op. pair"),
    ],
)
def test_invalid_metrics_are_an_error(tmp_path, metrics, message):
    made = of_metrics(lambda labels, scores: metrics, tmp_path)
    with pytest.raises(TypeError, match=message):
        made.evaluate(batches_of(16))


def test_reserved_name_is_an_error(tmp_path):
    made = of_metrics(
        lambda labels, scores: {"loss": tf.metrics.mean(scores)}, tmp_path
    )
    with pytest.raises(ValueError, match="cannot be named 'loss'"):
        made.evaluate(batches_of(16))


def test_tensors_of_an_unknown_rank(tmp_path):
    """TensorFlow 1.15.5 has these results."""

    def model_fn(features, labels, mode, params):
        scores, weights = features[:, 0], features[:, 1]
        given = [tf.placeholder_with_default(x, None) for x in (scores, labels)]
        loss = tf.reduce_mean(scores) * tf.get_variable("w", [])
        return kte.tf1.EstimatorSpec(
            mode,
            loss=loss,
            eval_metric_ops={
                "mean": tf.metrics.mean(given[0], weights),
                "accuracy": tf.metrics.accuracy(given[1], tf.round(given[0]), weights),
            },
        )

    x = np.float32([[0.3, 0.25], [0.8, 0.75], [0.8, 1], [0.1, 0]])
    y = np.float32([1, 0, 1, 1])
    found = estimator(model_fn, tmp_path).evaluate(fed([(x, y)]))
    assert found["mean"] == pytest.approx(0.7375)
    assert found["accuracy"] == pytest.approx(0.5)


def reset_in_a_branch(labels):
    """A sum that TensorFlow resets in each step, although no branch is taken."""
    total = tf.get_variable(
        "total",
        [],
        initializer=tf.zeros_initializer(),
        collections=[tf.GraphKeys.LOCAL_VARIABLES],
        trainable=False,
    )
    added = tf.assign_add(total, tf.reduce_sum(labels))
    with tf.control_dependencies([added]):
        counted = tf.assign_add(total, tf.cast(tf.size(labels), tf.float32))

    def reset():
        with tf.control_dependencies([tf.variables_initializer([total])]):
            return tf.constant(0)

    chosen = tf.cond(counted < 0, reset, lambda: tf.constant(1))
    group = tf.cond(counted < 0, lambda: tf.group(total.initializer), tf.no_op)
    with tf.control_dependencies([chosen, group]):
        return {"total": (total.read_value(), tf.identity(added))}


@pytest.mark.parametrize("as_ops", [False, True])
def test_initializers_in_branches_run_first(as_ops, tmp_path):
    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean(features)
        if as_ops:
            ops = reset_in_a_branch(features)
            return kte.tf1.EstimatorSpec(mode, loss=loss, eval_metric_ops=ops)
        return kte.tf1.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(reset_in_a_branch, [features])
        )

    x = np.arange(12, dtype="float32").reshape(3, 4)
    result = estimator(model_fn, tmp_path).evaluate(fed([x[:2], x[2:]]))
    # The sum and size of the last batch, as in TensorFlow 1.15.
    assert result["total"] == x[2:].sum() + 4


def counted(features, kind, local):
    """A metric that counts in a variable, and its value in several forms."""
    collections = [tf.GraphKeys.LOCAL_VARIABLES] if local else None
    zeros = tf.zeros_initializer()
    count = tf.get_variable(
        "count", [], tf.int64, zeros, trainable=False, collections=collections
    )
    update = tf.assign_add(count, tf.cast(tf.reduce_sum(features), tf.int64))
    return {
        "variable": lambda: (count, update),
        "computed": lambda: ((count * 2, tf.constant(1)), tf.group(update)),
        "read before": lambda: (count.value(), update),
    }[kind]()


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("kind", ["variable", "computed", "read before"])
def test_values_are_read_after_the_updates(kind, local, tmp_path):
    """TensorFlow 1.15.5 has these results."""

    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean(features * tf.get_variable("w", []))
        ops = {"a": counted(features, kind, local)}
        step = tf.assign_add(tf.train.get_global_step(), 1)
        return kte.tf1.EstimatorSpec(
            mode, loss=loss, train_op=step, eval_metric_ops=ops
        )

    made = estimator(model_fn, tmp_path, use_tpu=False)
    batches = np.arange(16, dtype="float32").reshape(4, 4)
    made.train(fed([*batches]), steps=1)
    for _ in range(2):
        result = made.evaluate(fed([*batches]), steps=4)["a"]
        assert result == ((240, 1) if kind == "computed" else 120)
