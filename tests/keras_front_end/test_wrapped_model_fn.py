"""Tests `estimator.model_fn` inside another estimator's model_fn."""

import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of, linear, regression_data, repeated
from keras import ops

import keras_tpu_estimator as kte

X, Y = regression_data()


def model_fn(features, labels, mode, params):
    outputs = params["scale"] * linear(features, False)
    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(mode, predictions={"y": outputs})
    loss = ops.mean((outputs - labels) ** 2)
    if mode == kte.ModeKeys.EVAL:
        metric_fn = (largest_of, {"labels": labels})
        return kte.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metric_fn)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.05))
    return kte.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss),
        host_call=(steps.append, [loss[None]]),
    )


def largest_of(labels):
    return {"mean_label": kte.metrics.mean(labels)}


steps = []


def original(model_dir, use_tpu=False):
    return estimator_of(model_fn, model_dir, use_tpu, params={"scale": 1.0})


def with_metrics(estimator, model_dir, metric_fn, use_tpu=False):
    """Adds metrics like `tf.estimator.add_metrics`."""

    def wrapping(features, labels, mode, params, config):
        spec = estimator.model_fn(features, labels, mode, config)
        if mode != kte.ModeKeys.EVAL:
            return spec
        added = metric_fn(features, labels)
        return spec._replace(eval_metric_ops={**spec.eval_metric_ops, **added})

    return estimator_of(wrapping, model_dir, use_tpu)


def largest(features, labels):
    metric = keras.metrics.MeanMetricWrapper(lambda true, _: true)
    metric.update_state(ops.abs(labels), labels)
    return {
        "mean_feature": kte.metrics.mean(features),
        "mean_size": metric,
    }


def test_metrics_are_added_on_one_core(tmp_path):
    plain = original(tmp_path / "plain")
    wrapped = with_metrics(plain, tmp_path / "wrapped", largest)
    for estimator in (plain, wrapped):
        steps.clear()
        estimator.train(repeated(X, Y), steps=8)
        assert len(steps) == 8
    np.testing.assert_array_equal(
        wrapped.get_variable_value("dense/kernel"),
        plain.get_variable_value("dense/kernel"),
    )
    # The last batch is smaller.
    expected = plain.evaluate(batches_of(X[:56], Y[:56]))
    result = wrapped.evaluate(batches_of(X[:56], Y[:56]))
    assert result["mean_feature"] == pytest.approx(X[:56].mean(), rel=1e-4)
    assert result["mean_size"] == pytest.approx(abs(Y[:56]).mean(), rel=1e-5)
    for name, value in expected.items():
        assert result[name] == pytest.approx(value, rel=1e-5)
    predicted = [
        [row["y"] for row in each.predict(batches_of(X))] for each in (plain, wrapped)
    ]
    np.testing.assert_array_equal(*predicted)


@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_model_fn_property_returns_estimator_specs(mode, tmp_path):
    """The original's property also returns an EstimatorSpec."""
    estimator = original(tmp_path)
    seen = []

    def wrapping(features, labels, mode, params, config):
        seen.append(estimator.model_fn(features, labels, mode, config))
        return seen[-1]

    other = estimator_of(wrapping, tmp_path / "other")
    other.train(repeated(X, Y), steps=1)
    if mode == "eval":
        other.evaluate(batches_of(X, Y))
    elif mode == "infer":
        list(other.predict(batches_of(X)))
    assert isinstance(seen[-1], kte.EstimatorSpec)
    assert seen[-1].mode == mode


def test_several_cores_train_and_otherwise_need_a_tpu_spec(tmp_path):
    wrapped = with_metrics(
        original(tmp_path / "plain", use_tpu=True),
        tmp_path / "wrapped",
        largest,
        use_tpu=True,
    )
    wrapped.train(repeated(X, Y), steps=2)
    assert wrapped.get_variable_value("dense/kernel").any()
    with pytest.raises(RuntimeError, match="must return a TPUEstimatorSpec"):
        wrapped.evaluate(batches_of(X, Y))
    with pytest.raises(RuntimeError, match="must return a TPUEstimatorSpec"):
        list(wrapped.predict(batches_of(X)))
