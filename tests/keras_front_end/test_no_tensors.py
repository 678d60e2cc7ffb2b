"""Tests that host functions without tensors are called for every step."""

import json

import keras
import pytest
from helpers import batches_of, linear, regression_data, squared_error

import keras_tpu_estimator as kte

X, Y = regression_data()
STEPS = 4  # The batch has 16 examples.


def estimator_with(model_dir, use_tpu, **fields):
    def model_fn(features, labels, mode, params):
        outputs = linear(features, False)
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(
                mode,
                predictions={"y": outputs},
                host_call=fields.get("host_call"),
            )
        loss = squared_error(outputs, labels)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.01))
        return kte.TPUEstimatorSpec(
            mode, loss=loss, train_op=optimizer.minimize(loss), **fields
        )

    config = kte.RunConfig(
        model_dir=str(model_dir),
        tpu_config=kte.TPUConfig(iterations_per_loop=STEPS),
        log_step_count_steps=STEPS,
    )
    return kte.TPUEstimator(
        model_fn,
        config=config,
        use_tpu=use_tpu,
        train_batch_size=16,
        eval_batch_size=16,
        predict_batch_size=16,
    )


def counted():
    metric = keras.metrics.Sum()
    metric.update_state(1.0)
    return {"count": metric, "fixed": kte.metrics.mean([1.0, 3.0])}


@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("tensors", [[], (), {}])
def test_eval_metrics(tensors, use_tpu, tmp_path):
    estimator = estimator_with(tmp_path, use_tpu, eval_metrics=(counted, tensors))
    estimator.train(batches_of(X, Y), steps=STEPS)
    result = estimator.evaluate(batches_of(X, Y))
    assert (result["count"], result["fixed"]) == (STEPS, 2.0)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_train_metrics(use_tpu, tmp_path):
    estimator = estimator_with(tmp_path, use_tpu, train_metrics=(counted, []))
    estimator.train(batches_of(X, Y), steps=STEPS)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["count"] == STEPS


@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("tensors", [[], {}])
def test_host_calls(tensors, use_tpu, tmp_path):
    def count():
        calls.append(1)

    def called(run):
        calls.clear()
        run()
        return len(calls)

    calls = []
    estimator = estimator_with(tmp_path, use_tpu, host_call=(count, tensors))
    counts = [
        called(lambda: estimator.train(batches_of(X, Y), steps=STEPS)),
        called(lambda: estimator.evaluate(batches_of(X, Y))),
        called(lambda: list(estimator.predict(batches_of(X)))),
    ]
    assert counts == [STEPS, STEPS, STEPS]


def test_spec_shows_its_arguments():
    spec = kte.TPUEstimatorSpec(
        kte.ModeKeys.EVAL,
        loss=keras.ops.zeros(()),
        eval_metrics=(counted, []),
        host_call=(counted, {}),
    )
    assert spec.eval_metrics == (counted, [])
    assert spec.host_call == (counted, {})
    assert set(spec.as_estimator_spec().eval_metric_ops) == {"count", "fixed"}
