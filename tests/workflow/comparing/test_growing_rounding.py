"""Rounding that would grow from step to step, and what it must not hide."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.workflow.comparing import programs
from keras_tpu_estimator.workflow.comparing.rounding import (
    nearly,
    of_runs,
    opposite,
    roughly,
)

# Rounding doubles in each step: after these, it is as large as the variable.
STEPS = 32
_FAULT = 28


def chaotic(factor: float = 1.0) -> Callable[..., Any]:
    """A program whose variable has values of the logistic map.

    From step `_FAULT` on, the loss is `factor` times as large.
    """

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        start = keras.initializers.RandomUniform(0.0, 1.0, seed=1)
        layer = keras.layers.Dense(16, use_bias=False, kernel_initializer=start)
        x = layer(features)
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, predictions={"x": x})
        loss = ops.sum(4 / 3 * x**3 - 1.5 * x**2)
        loss = loss * ops.where(ops.mean(labels) < _FAULT, 1.0, factor)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(1.0))
        train_op = optimizer.minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def input_fn(params: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the numbers of the steps as labels."""
    del params
    for number in range(1, STEPS + 1):
        yield np.ones((1, 1), "float32"), np.full((1,), number, "float32")


def test_rounding_does_not_grow() -> None:
    report = kte.compare(chaotic(), chaotic(), input_fn, steps=STEPS)
    assert report.is_equal, str(report)
    gradients = [one for one in report.compared if one.kind == "gradient"]
    assert len(gradients) == STEPS
    # Near the extremes of the loss, the gradient is small and rounding is large.
    assert np.median([one.difference.rounding for one in gradients]) < 1e-6


def test_late_fault_is_found() -> None:
    report = kte.compare(chaotic(), chaotic(1.001), input_fn, steps=STEPS)
    assert report.finding is not None, str(report)
    assert report.finding.compared.step == _FAULT
    assert report.finding.compared.kind == "loss"


def test_report_says_what_grown_rounding_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_STATE_BYTES", 0)
    report = kte.compare(chaotic(), chaotic(), input_fn, steps=STEPS)
    assert any("Rounding has grown" in note for note in report.notes), str(report)
    assert not any("only rounding" in note for note in report.notes), str(report)


def test_jumps_of_gradients_are_rounding() -> None:
    old, new = np.array([1.0, 2.0]), np.array([1.0, 2.008])
    near, jumped = old, np.array([1.004, 2.0])
    assert of_runs(old, new, near).exceeds(1e-5)
    assert of_runs(old, new, near, old + 1e-6).exceeds(1e-5)
    assert not of_runs(old, new, near, old + 0.01).exceeds(1e-5)
    assert of_runs(old, new, np.array([np.nan, 2.0]), old).exceeds(1e-5)
    # The jump of the copy is half as large.
    assert of_runs(old, new, near, jumped).exceeds(1e-5)
    # Together, both copies jump as far.
    assert not of_runs(old, new, near, jumped, jumped).exceeds(1e-5)


def edges(rewrites: bool, factor: float = 1.0) -> Callable[..., Any]:
    """A program in which some inputs of each ReLU are zero, up to rounding."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del labels, params
        variables = kte.jax_params("w", EDGE_VALUES)
        losses = []
        for name, w in variables.items():
            x, subtracted = features[name], features[f"{name}/subtracted"]
            if rewrites:
                inputs = w * x + (0.3 - subtracted)
            else:
                inputs = (w * x + 0.3) - subtracted
            losses.append(ops.mean(ops.relu(inputs)))
        loss = ops.sum(ops.stack(losses)) * factor
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.0))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    return model_fn


EDGE_VALUES = {f"w{n}": np.full((), 1 + n / 7, "float32") for n in range(24)}


def edge_batches(params: Any) -> dict[str, np.ndarray]:
    """Returns inputs of which two in each hundred are at an edge."""
    del params
    generator = np.random.default_rng(0)
    features = {}
    for name, w in EDGE_VALUES.items():
        x = generator.normal(1.0, 0.2, 200)
        subtracted = w * x + 0.3 + generator.choice([-0.1, 0.1], 200)
        subtracted[:4] = w * x[:4] + 0.3
        features[name] = x.astype("float32")
        features[f"{name}/subtracted"] = subtracted.astype("float32")
    return features


def test_jumps_in_either_direction_are_rounding() -> None:
    def input_fn(params: Any) -> tuple[dict[str, np.ndarray], None]:
        return edge_batches(params), None

    report = kte.compare(edges(False), edges(True), input_fn, steps=1)
    assert report.is_equal, str(report)
    gradients = [one for one in report.compared if one.kind == "gradient"]
    assert len(gradients) == len(EDGE_VALUES)
    assert max(one.difference.relative for one in gradients) > 1e-3
    assert not any("only rounding" in note for note in report.notes), str(report)
    report = kte.compare(edges(False), edges(True, 1.001), input_fn, steps=1)
    assert not report.is_equal


def test_far_copies_have_the_values_of_near_ones_in_few_bits() -> None:
    values = {"w": np.float32([1.5, 0.0]), "half": np.float16([1.5, 0.0])}
    near, far, other = nearly(values), roughly(values), opposite(values)
    assert abs(far["w"][0] - 1.5) == pytest.approx(30 * abs(near["w"][0] - 1.5))
    assert far["w"][1] == near["w"][1] == 0
    np.testing.assert_array_equal(far["half"], near["half"])
    np.testing.assert_allclose(far["w"] + other["w"], 2 * values["w"])
    np.testing.assert_allclose(far["half"] + other["half"], [3.0, 0.0], atol=1e-3)


def at_an_edge(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """A program whose loss is not a number if its variable is larger than 1."""
    del labels, params
    layer = keras.layers.Dense(8, use_bias=False, kernel_initializer="ones")
    x = layer(features)
    loss = ops.sum(x + ops.sqrt(1 - ops.stop_gradient(x)))
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def test_rounding_that_leaves_the_domain_of_the_loss() -> None:
    report = kte.compare(at_an_edge, at_an_edge, input_fn, steps=3)
    assert report.is_equal, str(report)
    losses = [one for one in report.compared if one.kind == "loss"]
    assert [one.step for one in losses] == [1, 2, 3]


def normalized(added: float = 0.0) -> Callable[..., Any]:
    """A program with a bias before a batch normalization, whose gradient is zero.

    The gradient with respect to each element of the bias increases by `added`.
    """

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        hidden = keras.layers.Dense(8, name="hidden")
        x = hidden(features)
        x = keras.layers.BatchNormalization(name="norm")(x, training=True)
        y = keras.layers.Dense(1, name="y")(ops.tanh(x))
        change = hidden.bias - ops.stop_gradient(hidden.bias)
        loss = ops.mean((y - labels) ** 2) + added * ops.sum(change)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.01))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    return model_fn


def sums(params: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields three batches of numbers and their sums."""
    del params
    generator = np.random.default_rng(0)
    for _ in range(3):
        x = generator.normal(size=(32, 4)).astype("float32")
        yield x, x.sum(axis=1, keepdims=True)


def test_gradient_in_place_of_a_zero_is_found() -> None:
    report = kte.compare(normalized(), normalized(0.01), sums, steps=3)
    assert report.finding is not None, str(report)
    assert report.finding.compared.kind == "gradient"
    assert report.finding.compared.name == "hidden/bias"


def test_gradients_that_are_zero_are_named() -> None:
    report = kte.compare(normalized(), normalized(), sums, steps=3)
    assert report.is_equal, str(report)
    assert (
        "In 3 steps, the gradients of hidden/bias are zero or only rounding, so their "
        "updates are not compared."
    ) in report.notes
    updated = {one.name for one in report.compared if one.kind == "variable"}
    assert "hidden/kernel" in updated
    assert "hidden/bias" not in updated
