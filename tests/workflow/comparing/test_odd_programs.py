"""Programs with parts that are rare: each has a true report or a plain error."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import keras_tpu_estimator as kte


def regression(features: Any, units: int = 1) -> Any:
    return keras.layers.Dense(units, name="output")(features)


def spec_of(mode: str, loss: Any, train_op: Any = None, **fields: Any) -> Any:
    if train_op is None and mode == "train":
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        train_op = optimizer.minimize(loss)
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, **fields)


def arrays() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    return x, x.sum(1, keepdims=True)


def input_fn(params: Any) -> Any:
    """Returns one batch."""
    del params
    return arrays()


def two_optimizers(rate: float = 0.01) -> Any:
    """A program with an optimizer for each of its two networks."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        losses, ops_of_training = [], []
        for name, optimizer in (
            ("one", keras.optimizers.Adam(0.01, name="first")),
            ("two", keras.optimizers.Adam(rate, name="second")),
        ):
            layer = keras.layers.Dense(1, name=name)
            losses.append(ops.mean((layer(features) - labels) ** 2))
            own = kte.CrossShardOptimizer(optimizer)
            ops_of_training.append(
                own.minimize(losses[-1], var_list=layer.trainable_variables)
            )
        return spec_of(mode, sum(losses), tuple(ops_of_training))

    return model_fn


def test_two_optimizers() -> None:
    assert kte.compare(two_optimizers(), two_optimizers(), input_fn, steps=2).is_equal
    report = kte.compare(two_optimizers(), two_optimizers(0.02), input_fn, steps=1)
    assert report.finding is not None, str(report)
    assert report.finding.compared.kind == "learning rate"
    assert "second" in report.finding.compared.name


def nested(key: str = "b") -> Any:
    """A program whose features are nested dicts, and whose predictions are several."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        outputs = regression(features["a"][key])
        if mode == "infer":
            values = {"y": outputs, "class": ops.cast(outputs > 0, "int32")}
            return kte.TPUEstimatorSpec(mode, predictions=values)
        return spec_of(mode, ops.mean((outputs - labels) ** 2))

    return model_fn


def nested_input_fn(params: Any) -> Any:
    """Returns nested features."""
    x, y = input_fn(params)
    return {"a": {"b": x, "c": -x}, "d": x}, y


def test_nested_features() -> None:
    assert kte.compare(nested(), nested(), nested_input_fn, steps=2).is_equal
    report = kte.compare(nested(), nested("c"), nested_input_fn, steps=1)
    assert report.finding is not None
    assert report.finding.compared.kind == "loss", str(report)


def test_input_that_ends_before_the_steps() -> None:
    def three_batches(params: Any) -> Any:
        for _ in range(3):
            yield nested_input_fn(params)

    report = kte.compare(nested(), nested(), three_batches, steps=10)
    assert report.is_equal, str(report)
    assert report.steps == 3


def logarithm(shift: float) -> Any:
    """A program whose loss is not a number if the shift is negative."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        outputs = regression(features)
        return spec_of(mode, ops.mean(ops.log(ops.abs(outputs) + shift) + labels))

    return model_fn


def test_losses_that_are_not_numbers() -> None:
    negative = logarithm(-1e6)
    report = kte.compare(negative, negative, input_fn, steps=2)
    assert report.is_equal, str(report)
    assert any("is not a number in step 1" in note for note in report.notes)
    report = kte.compare(logarithm(1.0), negative, input_fn, steps=2)
    assert report.finding is not None, str(report)
    assert report.finding.compared.kind == "loss"


def lookup(rate: float) -> Any:
    """A program with an embedding."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        ids = ops.cast(ops.abs(features), "int32")
        x = ops.mean(keras.layers.Embedding(8, 3, name="words")(ids), axis=1)
        loss = ops.mean((regression(x) - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.Adagrad(rate))
        return spec_of(mode, loss, optimizer.minimize(loss))

    return model_fn


def test_embeddings_on_several_devices() -> None:
    def estimator(rate: float) -> Any:
        config = kte.RunConfig(tf_random_seed=1)
        return kte.TPUEstimator(
            lookup(rate), config=config, train_batch_size=8, use_tpu=True
        )

    report = kte.compare(estimator(0.1), estimator(0.1), input_fn, steps=1)
    assert report.is_equal, str(report)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_embeddings_and_accumulated_gradients(micro_batches: int) -> None:
    def estimator(rate: float, micro_batches: int = 1) -> Any:
        config = kte.RunConfig(
            tf_random_seed=1, tpu_config=kte.TPUConfig(), micro_batches=micro_batches
        )
        return kte.TPUEstimator(
            lookup(rate), config=config, train_batch_size=8, use_tpu=False
        )

    old = estimator(0.1)
    report = kte.compare(old, estimator(0.1, micro_batches), input_fn, steps=2)
    assert report.is_equal, str(report)
    assert not kte.compare(old, estimator(0.2), input_fn, steps=1).is_equal
