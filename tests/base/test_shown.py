"""Values in messages."""

import jax
import numpy as np
import pytest

from keras_tpu_estimator.base.shown import shown


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


def test_long_values_are_cut() -> None:
    text = shown({f"name{number}": number for number in range(1000)})
    assert len(text) < 230
    assert " ... " in text
