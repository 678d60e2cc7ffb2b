"""Comparisons on several devices, and of different numbers of them."""

from typing import Any

import keras
import numpy as np

import keras_tpu_estimator as kte


def estimator(activation: str = "relu", use_tpu: bool = True, **config: Any) -> Any:
    """Returns an estimator of a small network, on eight devices or on one."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        x = keras.layers.Dense(8, activation=activation, name="hidden")(features)
        outputs = keras.layers.Dense(1, name="output")(x)
        if mode == "infer":
            return kte.TPUEstimatorSpec(mode, predictions={"y": outputs})
        loss = keras.ops.mean((outputs - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.01))
        train_op = optimizer.minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return kte.TPUEstimator(
        model_fn,
        config=kte.RunConfig(tf_random_seed=1, **config),
        train_batch_size=16,
        eval_batch_size=16,
        predict_batch_size=16,
        use_tpu=use_tpu,
    )


def input_fn(params: Any) -> Any:
    """Yields the same batches for every number of devices."""
    del params
    generator = np.random.default_rng(0)
    for _ in range(4):
        x = generator.normal(size=(16, 4)).astype("float32")
        yield x, x.sum(1, keepdims=True)


def test_eight_devices_equal_one() -> None:
    report = kte.compare(estimator(), estimator(use_tpu=False), input_fn, steps=2)
    assert report.is_equal, str(report)


def test_sharded_variables_equal_whole_ones() -> None:
    report = kte.compare(estimator(), estimator(fsdp=True), input_fn, steps=2)
    assert report.is_equal, str(report)


def test_layers_and_gradients_are_observed_on_several_devices() -> None:
    report = kte.compare(estimator(), estimator("gelu"), input_fn, steps=1)
    assert report.finding is not None
    assert report.finding.compared.kind == "loss"
    assert "equal up to `hidden/bias`" in report.finding.explanation, str(report)
    report = kte.compare(estimator(), estimator(), input_fn, steps=1)
    assert report.is_equal, str(report)
    names = {one.name for one in report.compared if one.kind == "gradient"}
    assert "hidden/kernel" in names


def test_layers_of_different_numbers_of_devices_are_not_compared() -> None:
    new = estimator("gelu", use_tpu=False)
    report = kte.compare(estimator(), new, input_fn, steps=1)
    assert report.finding is not None
    assert "on 8 devices and the new one on 1" in report.finding.explanation
