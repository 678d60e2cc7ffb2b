"""Comparisons that start from a checkpoint of the old program, with its slots."""

import pathlib
from typing import Any

import keras
import numpy as np
import optax
import pytest

import keras_tpu_estimator as kte

STEPS = 3


def program(optimizer: Any, name: str = "dense") -> Any:
    """Returns a `model_fn` of a linear model with an optimizer."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        outputs = keras.layers.Dense(1, name=name)(features)
        loss = keras.ops.mean((outputs - labels) ** 2)
        train_op = kte.CrossShardOptimizer(optimizer()).minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def input_fn(params: Any) -> Any:
    """Returns one batch."""
    del params
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    return x, x.sum(1, keepdims=True)


def half_trained(model_fn: Any, directory: pathlib.Path) -> str:
    """Trains, and returns the checkpoint."""
    config = kte.RunConfig(model_dir=str(directory), tf_random_seed=1)
    estimator = kte.TPUEstimator(model_fn, config=config, use_tpu=False)
    estimator.train(input_fn, steps=STEPS)
    return str(directory / f"model.ckpt-{STEPS}.h5")


def decayed(step: Any) -> Any:
    return 0.1 / (1 + step)


class Decayed(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule, so that the learning rate is not constant."""

    def __call__(self, step: Any) -> Any:
        return decayed(keras.ops.cast(step, "float32"))


def adam() -> Any:
    return keras.optimizers.Adam(0.1, epsilon=1e-8)


def sgd() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (adam, lambda: optax.adam(0.1)),
        (lambda: optax.sgd(0.1, momentum=0.9), sgd),
        (sgd, lambda: optax.sgd(0.1, momentum=0.9)),
    ],
    ids=["adam", "to keras", "to optax"],
)
def test_port_starts_from_the_state_of_the_optimizer(
    old: Any, new: Any, tmp_path: pathlib.Path
) -> None:
    checkpoint = half_trained(program(old), tmp_path)
    report = kte.compare(
        program(old),
        program(new, name="linear"),
        input_fn,
        checkpoint=checkpoint,
        steps=2,
    )
    assert report.is_equal, str(report)
    assert "optimizer state" in {one.kind for one in report.compared}


def test_lost_optimizer_state_is_a_difference(tmp_path: pathlib.Path) -> None:
    checkpoint = half_trained(program(adam), tmp_path)
    report = kte.compare(
        program(adam), program(sgd), input_fn, checkpoint=checkpoint, steps=1
    )
    assert report.finding is not None
    assert report.finding.compared.kind == "variable", str(report)


def test_momentum_with_a_changing_rate_is_reported(tmp_path: pathlib.Path) -> None:
    old = program(lambda: optax.sgd(decayed, momentum=0.9))
    new = program(lambda: keras.optimizers.SGD(Decayed(), momentum=0.9))
    checkpoint = half_trained(old, tmp_path)
    report = kte.compare(old, new, input_fn, checkpoint=checkpoint, steps=1)
    assert not report.is_equal
    assert any("which is not constant" in note for note in report.notes)
    assert any("`optax.sgd`" in note for note in report.notes)
