"""Tests that `evaluate` counts every example once, on any number of cores."""

import glob
import os

import keras
import numpy as np
import pytest
from helpers import (
    batches_of,
    each_once,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    repeated,
    squared_error,
)
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.model_fn.spec_checks import HostFunction
from keras_tpu_estimator.engine.device.traced_metrics import TracedMetrics

X, Y = regression_data(examples=70)
CLASSES = np.random.default_rng(1).integers(0, 3, 70).astype("int32")


def classifier(metric_fn, tensors=None):
    """A model_fn of three fixed logits for each example."""

    def model_fn(features, labels, mode, params):
        logits = keras.layers.Dense(
            3, kernel_initializer=keras.initializers.RandomNormal(seed=1)
        )(features)
        losses = keras.losses.sparse_categorical_crossentropy(
            labels, logits, from_logits=True
        )
        given = (tensors or (lambda *t: list(t)))(labels, logits)
        return kte.TPUEstimatorSpec(
            mode, loss=ops.mean(losses), eval_metrics=(metric_fn, given)
        )

    return model_fn


def logits_of(estimator_result):
    kernel = keras.initializers.RandomNormal(seed=1)((3, 3), "float32")
    return X @ np.asarray(kernel)


def accuracy(logits):
    return np.mean(logits.argmax(-1) == CLASSES)


def keras_metric_fn(labels, logits):
    metric = keras.metrics.SparseCategoricalAccuracy()
    metric.update_state(labels, logits)
    return {"accuracy": metric}


def function_metric_fn(labels, logits):
    predictions = ops.argmax(logits, -1)
    return {"accuracy": kte.metrics.accuracy(labels, predictions)}


def numpy_metric_fn(labels, logits):
    """A metric_fn that needs NumPy arrays, so it cannot be compiled."""
    right = np.asarray(logits).argmax(-1) == np.asarray(labels)
    return {"accuracy": kte.metrics.mean(right.astype("float32"))}


METRIC_FNS = [keras_metric_fn, function_metric_fn, numpy_metric_fn]


@pytest.mark.rows(4)
@pytest.mark.parametrize(
    ("use_tpu", "batch", "metric_fn"),
    [
        *each_once([True], [8, 64, 72], METRIC_FNS),
        *each_once([False], [72, 8, 64], METRIC_FNS),
    ],
)
def test_every_example_counts_once(use_tpu, batch, metric_fn, tmp_path):
    estimator = estimator_of(classifier(metric_fn), tmp_path, use_tpu, batch=batch)
    logits = logits_of(estimator)
    for _ in range(2):
        result = estimator.evaluate(batches_of(X, CLASSES))
        assert result["accuracy"] == pytest.approx(accuracy(logits), rel=1e-6)
    log_sum = np.log(np.exp(logits).sum(-1))
    losses = log_sum - logits[np.arange(70), CLASSES]
    assert result["loss"] == pytest.approx(losses.mean(), rel=1e-5)


def test_results_are_numpy_scalars(tmp_path):
    estimator = estimator_of(classifier(keras_metric_fn), tmp_path)
    result = estimator.evaluate(batches_of(X, CLASSES))
    assert {name: type(value) for name, value in result.items()} == {
        "accuracy": np.float32,
        "loss": np.float32,
        "global_step": np.int64,
    }


@pytest.mark.parametrize("at", [function_metric_fn, numpy_metric_fn])
def test_results_are_in_the_order_of_their_names(at, tmp_path):
    def metric_fn(*tensors):
        (metric,) = at(*tensors).values()
        return {"z": metric, "a": metric}

    estimator = estimator_of(classifier(metric_fn), tmp_path)
    result = estimator.evaluate(batches_of(X, CLASSES))
    # As of TensorFlow 1.15.5.
    assert list(result) == ["a", "loss", "z", "global_step"]


def test_metrics_of_a_dict_of_tensors(tmp_path):
    def metric_fn(classes, labels):
        return {"mean": kte.metrics.mean(classes == labels)}

    def tensors(labels, logits):
        return {"labels": labels, "classes": ops.argmax(logits, -1)}

    estimator = estimator_of(classifier(metric_fn, tensors), tmp_path)
    result = estimator.evaluate(batches_of(X, CLASSES))
    assert result["mean"] == pytest.approx(accuracy(logits_of(estimator)))


def test_metric_with_more_than_one_value(tmp_path):
    def metric_fn(labels, logits):
        f1 = keras.metrics.F1Score(average=None)
        f1.update_state(ops.one_hot(labels, 3), ops.softmax(logits))
        return {"f1": f1}

    estimator = estimator_of(classifier(metric_fn), tmp_path)
    result = estimator.evaluate(batches_of(X, CLASSES))
    assert result["f1"].shape == (3,)


def test_metrics_with_equal_names_are_distinguished(tmp_path):
    def metric_fn(labels, logits):
        means = {}
        for number in range(3):
            mean = keras.metrics.Mean()
            mean.update_state(ops.cast(labels == number, "float32"))
            means[f"share_{number}"] = mean
            named = kte.metrics.mean(labels == number, name="same")
            means[f"named_{number}"] = named
        return means

    estimator = estimator_of(classifier(metric_fn), tmp_path)
    result = estimator.evaluate(batches_of(X, CLASSES))
    for number in range(3):
        share = np.mean(CLASSES == number)
        assert result[f"share_{number}"] == pytest.approx(share)
        assert result[f"named_{number}"] == pytest.approx(share)


def test_steps_limit_what_is_evaluated(tmp_path):
    estimator = estimator_of(classifier(function_metric_fn), tmp_path, batch=8)
    result = estimator.evaluate(batches_of(X, CLASSES), steps=3)
    right = logits_of(estimator)[:24].argmax(-1) == CLASSES[:24]
    assert result["accuracy"] == pytest.approx(right.mean())


def test_fewer_batches_than_steps_is_fine(tmp_path):
    estimator = estimator_of(classifier(function_metric_fn), tmp_path, batch=8)
    result = estimator.evaluate(batches_of(X, CLASSES), steps=1000)
    assert result["accuracy"] == pytest.approx(accuracy(logits_of(estimator)))


def test_evaluation_takes_many_runs_of_the_loop(tmp_path):
    runs = []

    class Count(kte.hooks.SessionRunHook):
        def after_run(self, run_context, run_values):
            runs.append(run_context)

    estimator = estimator_of(classifier(function_metric_fn), tmp_path, batch=1)
    result = estimator.evaluate(batches_of(X, CLASSES), hooks=[Count()])
    assert len(runs) == 70
    assert result["accuracy"] == pytest.approx(accuracy(logits_of(estimator)))


def test_empty_input_is_an_error(tmp_path):
    estimator = estimator_of(classifier(keras_metric_fn), tmp_path)
    with pytest.raises(ValueError, match="at least one batch"):
        estimator.evaluate(lambda params: iter(()))


def test_error_of_a_metric_fn_is_raised(tmp_path):
    def metric_fn(labels, logits):
        raise ZeroDivisionError("mine")

    estimator = estimator_of(classifier(metric_fn), tmp_path)
    with pytest.raises(ZeroDivisionError, match="mine"):
        estimator.evaluate(batches_of(X, CLASSES))


def test_estimator_spec_on_one_core(tmp_path):
    def model_fn(features, labels, mode, params):
        outputs = linear(features, False)
        return kte.EstimatorSpec(
            mode,
            loss=squared_error(outputs, labels),
            eval_metric_ops={"mae": kte.metrics.mean_absolute_error(labels, outputs)},
        )

    estimator = estimator_of(model_fn, tmp_path, batch=32)
    for _ in range(2):  # Accumulators are reset.
        result = estimator.evaluate(batches_of(X, Y))
        assert result["mae"] == pytest.approx(np.abs(Y).mean(), rel=1e-5)


def test_as_estimator_spec_calls_metric_fn(tmp_path):
    inner = classifier(function_metric_fn)

    def model_fn(features, labels, mode, params):
        return inner(features, labels, mode, params).as_estimator_spec()

    estimator = estimator_of(model_fn, tmp_path, batch=32)
    result = estimator.evaluate(batches_of(X, CLASSES))
    assert result["accuracy"] == pytest.approx(accuracy(logits_of(estimator)))


def test_chosen_checkpoint_is_evaluated(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path, batch=35)
    estimator.train(repeated(X, Y), steps=3).train(repeated(X, Y), steps=3)
    early = f"{tmp_path}/model.ckpt-3"
    losses = {
        path: estimator.evaluate(batches_of(X, Y), checkpoint_path=path)
        for path in (early, None, early)
    }
    assert losses[early]["global_step"] == 3
    assert losses[None]["global_step"] == 6
    assert losses[None]["loss"] < losses[early]["loss"]


def test_without_checkpoint_initial_values_are_evaluated(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    result = estimator.evaluate(batches_of(X, Y))
    assert result["global_step"] == 0
    assert result["loss"] == pytest.approx((Y**2).mean(), rel=1e-5)
    assert estimator.latest_checkpoint() is None


def test_results_are_written_once_for_each_name(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.evaluate(batches_of(X, Y))
    estimator.evaluate(batches_of(X, Y), name="test")
    for directory in ("eval", "eval_test"):
        files = glob.glob(str(tmp_path / directory / "events.out.tfevents.*"))
        assert len(files) == 1 and os.path.getsize(files[0]) > 0


def test_eval_on_one_core_beside_training_on_all(tmp_path):
    seen = []

    def model_fn(features, labels, mode, params):
        seen.append((mode, params["batch_size"], params["use_tpu"]))
        assert features.shape[0] == params["batch_size"]
        return model_fn_of(linear)(features, labels, mode, params)

    estimator = estimator_of(model_fn, tmp_path, use_tpu=True, eval_on_tpu=False)
    estimator.train(repeated(X, Y), steps=2)
    estimator.evaluate(batches_of(X[:64], Y[:64]))
    assert seen == [("train", 2, True), ("eval", 16, False)]


@pytest.mark.parametrize("metric_fn", METRIC_FNS)
def test_host_metrics_accumulate_and_reset(metric_fn):
    metrics = TracedMetrics(HostFunction(metric_fn, (None, None)))
    logits = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
    labels = np.int32([[0, 1, 2, 0], [1, 1, 1, 1]])
    right = logits.argmax(-1) == labels
    for _ in range(2):
        metrics.reset()
        metrics.update([labels[:1], logits[:1]])
        metrics.update([labels[1:, :3], logits[1:, :3]])
        expected = (right[0].sum() + right[1, :3].sum()) / 7
        assert metrics.result()["accuracy"] == pytest.approx(expected)


@pytest.mark.parametrize("mode", ["evaluate", "predict"])
def test_run_before_training_warns_once(tmp_path, caplog, mode):
    def call(directory, **settings):
        caplog.clear()
        estimator = estimator_of(model_fn_of(linear), directory, **settings)
        list(getattr(estimator, mode)(batches_of(X, Y)))
        warnings = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
        return [message for message in warnings if "initial values" in message]

    (message,) = call(tmp_path / "runs" / "first")
    assert f"model_dir={str(tmp_path / 'runs' / 'first')!r} has no" in message
    assert not call(tmp_path / "runs" / "first")
    trained = estimator_of(model_fn_of(linear), tmp_path / "runs" / "second")
    trained.train(repeated(X, Y), steps=1)
    assert not call(tmp_path / "runs" / "second")
    (message,) = call(tmp_path / "runs" / "sceond")
    assert f"Set it to {str(tmp_path / 'runs' / 'second')!r}" in message
    # These have no training on purpose.
    warm = {"warm_start_from": trained.latest_checkpoint()}
    assert not call(tmp_path / "runs" / "warm", **warm)
    assert not call(tmp_path / "runs" / "dry", config={"fast_dev_run": True})
