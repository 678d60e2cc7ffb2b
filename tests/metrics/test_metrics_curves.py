import numpy as np
import pytest
from metrics_oracle import assert_same, compiled, eager, tf_values

from keras_tpu_estimator import metrics

AT_THRESHOLDS = [
    "true_positives_at_thresholds",
    "false_negatives_at_thresholds",
    "true_negatives_at_thresholds",
    "false_positives_at_thresholds",
    "precision_at_thresholds",
    "recall_at_thresholds",
]
POINTS = ["sensitivity_at_specificity", "specificity_at_sensitivity"]
METHODS = ["trapezoidal", "careful_interpolation", "minoring", "majoring"]
_rng = np.random.default_rng(3)
# Some predictions coincide with thresholds, and many with each other.
_labels = _rng.integers(0, 2, size=(30, 4))
_predictions = (_rng.integers(0, 41, size=(30, 4)) / 40).astype("float32")
_weights = _rng.random((30, 4)).astype("float32")


@pytest.mark.parametrize("weights", [None, 0.3, _weights, _weights[:, :1]])
@pytest.mark.parametrize(
    "thresholds", [[0.5], [0.8, 0.0, 0.25, 0.25, 1.0], [0.1, 0.3, 0.33]]
)
def test_at_thresholds(weights, thresholds):
    assert_same(AT_THRESHOLDS, _labels, _predictions, thresholds, weights, run=eager)


@pytest.mark.parametrize("curve", ["ROC", "PR"])
@pytest.mark.parametrize("summation_method", METHODS)
@pytest.mark.parametrize(
    ("num_thresholds", "weights"),
    [(2, None), (3, _weights), (200, None), (200, _weights)],
)
def test_auc(curve, summation_method, num_thresholds, weights):
    assert_same(
        "auc",
        _labels,
        _predictions,
        weights,
        num_thresholds,
        curve=curve,
        summation_method=summation_method,
        run=eager,
    )


@pytest.mark.parametrize(
    ("curve", "summation_method"),
    [
        ("ROC", "trapezoidal"),
        ("PR", "minoring"),
        ("PR", "careful_interpolation"),
    ],
)
@pytest.mark.parametrize(
    ("labels", "predictions"),
    [
        ([0, 0, 0], [0.1, 0.5, 0.7]),
        ([1, 1, 1], [0.1, 0.5, 0.7]),
        ([0, 1, 1], [0.2, 0.2, 0.2]),
        ([0, 0, 1], [0.1, 0.2, 0.9]),
        ([1, 1, 0], [0.1, 0.2, 0.9]),
        ([0, 1], [0.0, 1.0]),
        ([], []),
    ],
)
def test_auc_of_extreme_data(curve, summation_method, labels, predictions):
    assert_same(
        "auc",
        np.array(labels, "int64"),
        np.array(predictions, "float32"),
        curve=curve,
        summation_method=summation_method,
        run=eager,
    )


@pytest.mark.parametrize("curve", ["ROC", "PR"])
def test_auc_at_given_thresholds(curve):
    assert_same(
        "auc",
        _labels,
        _predictions,
        curve=curve,
        summation_method="careful_interpolation",
        thresholds=[0.7, 0.1, 0.4],
    )


def test_auc_removes_a_last_dimension_of_one():
    assert_same("auc", _labels[:, 0], _predictions[:, :1], _weights[:, 0])


@pytest.mark.parametrize("target", [0.0, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("weights", [None, _weights])
@pytest.mark.parametrize("num_thresholds", [5, 200])
def test_points(target, weights, num_thresholds):
    assert_same(
        POINTS,
        _labels,
        _predictions,
        target,
        weights,
        num_thresholds,
        run=eager,
    )


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1, 1]])
def test_points_of_one_class(labels):
    assert_same(POINTS, np.array(labels), np.float32([0.2, 0.5, 0.7]), 0.5, run=eager)


@pytest.mark.parametrize("seed", range(5))
def test_rounded_sums_keep_ties(seed):
    """There are far fewer predictions than thresholds, with inexact weights."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, size=12)
    predictions = rng.random(12).astype("float32")
    weights = rng.random(12).astype("float32")

    assert_same(POINTS, labels, predictions, 0.55, weights, run=eager)


OUTSIDE = [[0.5, 1.5], [-0.5, 0.5], [float("nan"), 0.5]]


@pytest.mark.parametrize("predictions", OUTSIDE)
def test_known_predictions_outside_of_0_and_1_raise(predictions):
    with pytest.raises(ValueError, match=r"must be in \[0, 1\].*sigmoid"):
        metrics.auc([0, 1], predictions)


@pytest.mark.parametrize("predictions", OUTSIDE)
@pytest.mark.parametrize("method", ["trapezoidal", "careful_interpolation"])
def test_compiled_predictions_outside_of_0_and_1_give_nan(method, predictions):
    ((value, _),) = compiled(
        ["auc"],
        np.array([0, 1]),
        np.float32(predictions),
        curve="PR",
        summation_method=method,
    )

    assert np.isnan(value)


@pytest.mark.parametrize(
    ("names", "argument"), [(POINTS, 0.5), (AT_THRESHOLDS, [0.2, 0.4])]
)
def test_all_compiled_functions_of_probabilities_give_nan(names, argument):
    batch = np.array([0, 1]), np.float32([2, 0.5])

    for value, _ in compiled(names, *batch, argument):
        assert np.isnan(value).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"curve": "roc"}, r"`curve` must be one of \['ROC', 'PR'\].*'roc'"),
        ({"summation_method": "simpson"}, "`summation_method`.*'simpson'"),
        ({"num_thresholds": 1}, "`num_thresholds` must be at least 2.*1"),
    ],
)
def test_bad_options_of_auc(arguments, message):
    with pytest.raises(ValueError, match=message):
        metrics.auc([0, 1], [0.0, 1.0], **arguments)


def test_targets_outside_of_0_and_1():
    with pytest.raises(ValueError, match=r"`specificity`.*\[0, 1\].*1.5"):
        metrics.sensitivity_at_specificity([0, 1], [0.0, 1.0], 1.5)
    with pytest.raises(ValueError, match=r"`sensitivity`.*\[0, 1\].*-1"):
        metrics.specificity_at_sensitivity([0, 1], [0.0, 1.0], -1)


def test_oracle_refuses_what_we_refuse():
    import tensorflow as tf

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0, 1\]"):
        tf_values(["auc"], np.array([0, 1]), np.float32([0.5, 1.5]))
