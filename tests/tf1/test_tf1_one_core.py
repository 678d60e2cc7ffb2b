"""Tests `EstimatorSpec`: metrics in the graph, summaries, metrics of steps."""

import keras_tpu_estimator as kte  # isort: skip

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tf_keras
from test_tf1_metric_session import batches_of, in_a_session, several
from tf1_programs import estimator, fed, summaries_in, variable

X = np.linspace(-1, 1, 32, dtype="float32").reshape(16, 2)


def with_metrics(metric_ops, tmp_path, **settings):
    """An estimator whose features are scores, with metrics in the graph."""

    def model_fn(features, labels, mode, params):
        scores = features * variable("one", 1) ** 0
        return kte.tf1.EstimatorSpec(
            mode,
            loss=tf.reduce_mean(scores),
            eval_metric_ops=metric_ops(labels, scores),
        )

    return estimator(model_fn, tmp_path, **settings)


def test_metrics_of_the_graph_match_a_session(tmp_path):
    made = with_metrics(several, tmp_path)
    # Batches of two sizes have two graphs, and the counts continue.
    result = made.evaluate(batches_of(16, 16, 8))
    for name, value in in_a_session(16, 16, 8).items():
        np.testing.assert_allclose(result[name], value, rtol=1e-6)
    again = made.evaluate(batches_of(16))
    for name, value in in_a_session(16).items():
        np.testing.assert_allclose(again[name], value, rtol=1e-6)


def test_metrics_without_variables_and_with_strings(tmp_path):
    def metric_ops(labels, scores):
        text = tf.strings.as_string(labels)
        same = tf.strings.regex_full_match(text, "1")
        return {
            "last": (scores[-1], tf.no_op()),
            "ones": tf.metrics.mean(tf.cast(same, tf.float32)),
            "constant": (tf.constant(3.0), tf.no_op()),
        }

    result = with_metrics(metric_ops, tmp_path).evaluate(batches_of(16, 8))
    expected = with_metrics(
        lambda labels, scores: {
            "last": (scores[-1], tf.no_op()),
            "ones": tf.metrics.mean(labels),
        },
        tmp_path / "other",
    ).evaluate(batches_of(16, 8))
    assert result["constant"] == 3
    assert result["last"] == expected["last"]
    assert result["ones"] == expected["ones"]


def test_metrics_that_are_text_or_nested(tmp_path):
    def metric_ops(labels, scores):
        count = tf.metrics.mean(scores)
        image = tf.summary.image("one", tf.zeros([1, 2, 2, 1]))
        return {
            "nested": (((count[0], labels[-1]), (tf.constant(2),)), count[1]),
            "text": (tf.constant(b"a\0"), tf.no_op()),
            "texts": (tf.constant(["a", "b"]), tf.no_op()),
            "image": (image, tf.no_op()),
            "plain": tf.metrics.mean(scores),
        }

    result = with_metrics(metric_ops, tmp_path).evaluate(batches_of(16, 8))
    (mean, label), two = result["nested"]
    assert mean == result["plain"]
    assert isinstance(label, np.integer)
    assert two == (2,)
    assert result["text"] == b"a\0"
    assert list(result["texts"]) == [b"a", b"b"]
    assert isinstance(result["image"], bytes)
    written = summaries_in(tmp_path / "eval")
    assert {"image/0", "plain"} <= {tag for tag, _ in written}


def test_metrics_of_tf_keras(tmp_path):
    def metric_ops(labels, scores):
        mean = tf_keras.metrics.Mean()
        mean.update_state(scores)
        return {"keras": mean, "tf": tf.metrics.mean(scores)}

    made = with_metrics(metric_ops, tmp_path)
    for _ in range(2):
        result = made.evaluate(batches_of(16, 16, 8))
        np.testing.assert_allclose(result["keras"], result["tf"], rtol=1e-6)


def test_metric_that_was_never_updated_is_refused(tmp_path):
    made = with_metrics(
        lambda labels, scores: {"mean": tf_keras.metrics.Mean()}, tmp_path
    )
    with pytest.raises(ValueError, match="'mean' must be updated"):
        made.evaluate(batches_of(16))


def test_spec_for_several_cores_converts_to_one_core(tmp_path):
    def model_fn(features, labels, mode, params):
        scores = features * variable("one", 1) ** 0
        spec = kte.tf1.TPUEstimatorSpec(
            mode,
            loss=tf.reduce_mean(scores),
            eval_metrics=(several, [labels, scores]),
        )
        return spec.as_estimator_spec()

    result = estimator(model_fn, tmp_path).evaluate(batches_of(16, 16, 8))
    for name, value in in_a_session(16, 16, 8).items():
        np.testing.assert_allclose(result[name], value, rtol=1e-6)


def test_several_cores_need_a_tpu_spec(tmp_path):
    made = with_metrics(several, tmp_path, use_tpu=True)
    with pytest.raises(RuntimeError, match="must return a TPUEstimatorSpec"):
        made.evaluate(batches_of(16))


def test_evaluation_on_one_core_accepts_both_specs(tmp_path):
    made = with_metrics(several, tmp_path, use_tpu=True, eval_on_tpu=False)
    result = made.evaluate(batches_of(16))
    np.testing.assert_allclose(result["half"], in_a_session(16)["half"])


def training(tmp_path, record=lambda x, loss: None, **settings):
    """An estimator for training, given an additional function of its model_fn."""

    def model_fn(features, labels, mode, params):
        y = features * variable("w", 2)
        loss = tf.reduce_mean(y**2)
        more = record(y, loss) or {}
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        if params["use_tpu"]:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, **more)

    return estimator(model_fn, tmp_path, **settings)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_summaries_of_a_model_fn(tmp_path, use_tpu):
    def record(y, loss):
        tf.summary.scalar("twice", loss * 2)
        tf.summary.histogram("outputs", y)
        tf.summary.image("images", tf.reshape(y, [-1, 1, 2, 1]), max_outputs=2)
        first = tf.reshape(y, [-1, 1, 2, 1])
        tf.summary.image("first", first, max_outputs=1)
        tf.summary.audio("tone", y[..., None], 8000, max_outputs=1)
        tf.summary.text("about", tf.stack([["rate", "0.1"], ["units", "2"]]))
        # Devices cannot compute this one, so it is left out.
        tf.summary.text("text", tf.strings.as_string(loss))
        tf.summary.scalar("late", tf.py_func(lambda a: a, [loss], tf.float32))

    made = training(
        tmp_path, record, use_tpu=use_tpu, iterations=2, save_summary_steps=2
    )
    made.train(fed([X] * 4), steps=4)
    values = summaries_in(tmp_path)
    # TF1 numbers images if several are possible.
    images = {"images/image/0", "images/image/1", "first/image"}
    tags = {"loss", "twice", "outputs", *images, "tone/audio", "about"}
    written = {tag for tag, step in values if step == 4}
    assert tags <= written
    assert not written & {"text", "late"}
    scalar = values["twice", 4]
    # The values of the last step; the loss is the mean over the loop's two steps.
    assert 0 < scalar < 2 * values["loss", 4]
    assert {len(values[tag, 4]) for tag in images} == {3}
    assert not {tag for tag in written - tags if tag.startswith("images")}
    about = [[b"rate", b"0.1"], [b"units", b"2"]]
    assert values["about", 4].tolist() == about


def test_metrics_in_the_graph_of_training(tmp_path):
    def record(y, loss):
        mean = tf.metrics.mean(y)
        tf.summary.scalar("average", mean[1])

    made = training(tmp_path, record, iterations=2, save_summary_steps=2)
    for _ in range(2):  # Each call counts again.
        made.train(fed([X, 0 * X]), steps=2)
        assert "w" in made.get_variable_names()
        assert len(made.get_variable_names()) == 2
    values = summaries_in(tmp_path)
    first, second = (values["average", step] for step in (2, 4))
    assert first != 0
    np.testing.assert_allclose(second / first, 1, atol=0.3)


def mean_step(steps):
    """A metric_fn."""
    return {"step_before": tf.metrics.mean(steps)}


def test_metrics_of_training_steps(tmp_path):
    def record(y, loss):
        step = tf.cast(tf.train.get_global_step(), tf.float32)
        return {"train_metrics": (mean_step, [y * 0 + step])}

    made = training(
        tmp_path,
        record,
        iterations=2,
        log_step_count_steps=2,
        save_summary_steps=2,
    )
    made.train(fed([X] * 4), steps=4)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    # The metrics of all steps since the previous report.
    assert [json.loads(each)["step_before"] for each in lines] == [0.5, 2.5, 2.5]


@pytest.mark.parametrize("use_tpu", [False, True])
def test_single_tensor_as_predictions(tmp_path, use_tpu):
    def model_fn(features, labels, mode, params):
        return kte.tf1.TPUEstimatorSpec(mode, predictions=features * 2)

    made = estimator(model_fn, tmp_path, use_tpu=use_tpu)
    if use_tpu:
        with pytest.raises(TypeError, match="must be a dict of tensors"):
            list(made.predict(fed([X])))
        return
    np.testing.assert_allclose(list(made.predict(fed([X]))), X * 2)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ([], "a dict from names"),
        ({"a": [1, 2]}, r"a keras\.metrics\.Metric or"),
        ({"a": (object(), None)}, "a tensor of the graph"),
    ],
)
def test_invalid_eval_metric_ops_are_refused(metrics, message):
    with tf.Graph().as_default(), pytest.raises(TypeError, match=message):
        kte.tf1.EstimatorSpec("eval", loss=1.0, eval_metric_ops=metrics)
