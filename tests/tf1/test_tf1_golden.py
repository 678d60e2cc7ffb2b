"""Tests that scripts of 2018 match their results with the original.

`golden/make.py` made the expected results with TensorFlow 2.15.1 and its estimator.
"""

import tf1_golden  # isort: skip

import numpy as np
import pytest
from helpers import some_slow
from running import PROGRAMS, run

# A few run each time, and all in `.ci/run`.
SELDOM = {*PROGRAMS} - {"bert_classifier", "gan", "mnist_cnn"}


@pytest.fixture(
    scope="module",
    params=some_slow(PROGRAMS, SELDOM),
)
def both(request, tmp_path_factory):
    """The results of a script here and with the original."""
    name = request.param
    ours = run(name, str(tmp_path_factory.mktemp(name)))
    return ours, tf1_golden.golden(name)


def test_losses(both):
    ours, expected = both
    assert len(expected["losses"]) >= 10
    np.testing.assert_allclose(ours["losses"], expected["losses"], rtol=1e-5)


def test_metrics(both):
    ours, expected = both
    assert ours["metrics"].keys() == expected["metrics"].keys()
    for name, value in expected["metrics"].items():
        np.testing.assert_allclose(
            ours["metrics"][name], value, rtol=1e-6, err_msg=name
        )


def test_predictions(both):
    ours, expected = both
    assert ours["predictions"].keys() == expected["predictions"].keys()
    for name, value in expected["predictions"].items():
        np.testing.assert_allclose(
            ours["predictions"][name], value, 1e-4, 1e-4, err_msg=name
        )


def test_variables(both):
    ours, expected = both
    assert sorted(ours["values"]) == sorted(expected["values"])
    for name, value in ours["values"].items():
        known = expected["values"][name]
        assert list(value.shape) == known["shape"], name
        np.testing.assert_allclose(
            [
                value.mean(dtype="float64"),
                np.linalg.norm(value.astype("float64")),
            ],
            [known["mean"], known["norm"]],
            rtol=1e-4,
            # Adam turns gradients that are only rounding errors into steps.
            atol=1e-4,
            err_msg=name,
        )
