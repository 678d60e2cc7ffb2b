"""Tests how messages show values."""

import jax
import numpy as np
import pytest

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.engine.inputs.batch import Batch
from keras_tpu_estimator.engine.inputs.request import call_input_fn


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros((2, 3), "float32"), "float32 of shape (2, 3)"),
        (jax.numpy.zeros((2, 3)), "float32 of shape (2, 3)"),
        (np.array(0.5), "float64 0.5"),
        (np.float32(0.5), "np.float32(0.5) of type float32"),
        (3, "3 of type int"),
        ((np.zeros(2), 1), "(float64 of shape (2,), 1) of type tuple"),
        ((np.zeros(2),), "(float64 of shape (2,),) of type tuple"),
        ([{"x": np.zeros(2)}], "[{'x': float64 of shape (2,)}] of type list"),
        ({}, "{} of type dict"),
    ],
)
def test_shown(value: object, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    "call",
    [
        lambda given: call_input_fn(given, "train", {}, None),
        lambda given: Batch.from_value(({}, given)),
        lambda given: kte.TPUEstimator(given, config=kte.RunConfig()),
        lambda given: kte.RunConfig(given),
        lambda given: kte.TPUEstimatorSpec("eval", loss=[given]),
        lambda given: kte.TPUEstimatorSpec("eval", loss=given),
        lambda given: kte.TPUEstimatorSpec("train", loss=1, train_op={0: given}),
        lambda given: kte.TPUEstimatorSpec("infer", predictions={"x": [given]}),
        lambda given: kte.TPUEstimatorSpec("eval", eval_metrics=given),
        lambda given: kte.TPUEstimatorSpec("eval", host_call=(given, [given])),
        lambda given: kte.summary.image("x", given, max_outputs=given),
    ],
)
def test_errors_print_no_array(call):
    given = np.full((50, 3), 7.125)
    with pytest.raises((TypeError, ValueError)) as caught:
        call(given)
    assert "7.125" not in str(caught.value)


def test_long_values_are_shortened() -> None:
    text = shown({f"name{number}": number for number in range(1000)})
    assert len(text) < 230
    assert " ... " in text
