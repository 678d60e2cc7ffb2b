import numpy as np
import pytest
from metrics_oracle import assert_same, tf_values

from keras_tpu_estimator import metrics

NAMES = [
    "true_positives",
    "false_negatives",
    "true_negatives",
    "false_positives",
    "precision",
    "recall",
]
_rng = np.random.default_rng(2)


def _bits(*shape):
    return _rng.integers(0, 2, size=shape)


@pytest.mark.parametrize("shape", [(20,), (20, 1), (4, 5), (2, 2, 5)])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_counts(shape, is_weighted):
    weights = _rng.random(shape).astype("float32") if is_weighted else None

    assert_same(NAMES, _bits(*shape), _bits(*shape), weights)


@pytest.mark.parametrize(
    ("labels", "predictions", "weights"),
    [
        ((4, 1), (4,), (4,)),
        ((4,), (4, 1), (4, 1)),
        ((4, 5), (4, 5), (4, 1)),
        ((4, 5), (4, 5), (1, 5)),
        ((4, 5), (4, 5), (4,)),
    ],
)
def test_counts_of_other_ranks(labels, predictions, weights):
    weights = _rng.random(weights).astype("float32")

    assert_same(NAMES, _bits(*labels), _bits(*predictions), weights)


def test_scalar_weight():
    assert_same(NAMES, _bits(9), _bits(9), 0.25)


@pytest.mark.parametrize(
    ("labels", "predictions"),
    [
        ([0, 0, 0], [0, 0, 0]),
        ([0, 0, 0], [1, 1, 1]),
        ([1, 1, 1], [0, 0, 0]),
        ([1, 1, 1], [1, 1, 1]),
    ],
)
def test_divisions_by_zero(labels, predictions):
    assert_same(NAMES, np.array(labels), np.array(predictions))


def test_every_nonzero_value_is_positive():
    labels = np.array([0, 1, -2, 3, 0, 0])
    predictions = np.float32([0.1, 0.0, -0.5, 0.3, 0.0, 0.4])

    assert_same(NAMES, labels, predictions)


def test_f1_from_two_values():
    labels, predictions = _bits(2, 50)
    precision, _ = metrics.precision(labels, predictions)
    recall, _ = metrics.recall(labels, predictions)
    (theirs_p, _), (theirs_r, _) = tf_values(
        ["precision", "recall"], labels, predictions
    )

    np.testing.assert_allclose(
        2 * precision * recall / (precision + recall),
        2 * theirs_p * theirs_r / (theirs_p + theirs_r),
        rtol=1e-6,
    )
