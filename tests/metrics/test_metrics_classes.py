import numpy as np
import pytest
from metrics_oracle import assert_same, compiled

from keras_tpu_estimator import metrics

NAMES = ["mean_iou", "mean_per_class_accuracy"]
_rng = np.random.default_rng(4)


@pytest.mark.rows(9)
@pytest.mark.parametrize("num_classes", [1, 2, 4])
@pytest.mark.parametrize("shape", [(30,), (5, 6), (2, 3, 5, 1)])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_classes(num_classes, shape, is_weighted):
    labels, predictions = _rng.integers(0, num_classes, size=(2, *shape))
    weights = _rng.random(shape).astype("float32")
    kwargs = {"weights": weights} if is_weighted else {}

    assert_same(NAMES, labels, predictions, num_classes, **kwargs)


@pytest.mark.parametrize(
    ("labels", "predictions"),
    [
        ([0, 0, 1], [0, 1, 1]),
        ([3, 3, 3], [3, 3, 3]),
        ([2, 2], [1, 1]),
        ([], []),
    ],
)
def test_classes_without_examples(labels, predictions):
    labels = np.array(labels, "int32")
    predictions = np.array(predictions, "int32")

    assert_same(NAMES, labels, predictions, 4)


def test_examples_without_weight():
    weights = np.float32([1, 0, 0, 1])

    assert_same(
        NAMES,
        np.array([0, 1, 1, 2]),
        np.array([0, 0, 1, 1]),
        4,
        weights=weights,
    )
    assert_same(NAMES, np.array([0, 1]), np.array([0, 0]), 2, weights=np.zeros(2, "f4"))


@pytest.mark.parametrize("name", NAMES)
def test_weights_broadcast(name):
    function = getattr(metrics, name)
    labels, predictions = _rng.integers(0, 3, size=(2, 4, 5))
    column = np.float32([[1], [0], [2], [0.5]])
    whole = np.broadcast_to(column, (4, 5))

    for weights in (column, column[:, 0]):
        value, update = function(labels, predictions, 3, weights)
        expected, expected_update = function(labels, predictions, 3, whole)
        assert value == expected
        np.testing.assert_array_equal(update, expected_update)


@pytest.mark.parametrize("labels", [[0, 2], [-1, 0], [255, 0]])
@pytest.mark.parametrize("name", NAMES)
def test_unknown_labels(name, labels):
    with pytest.raises(ValueError, match=r"labels must be.*\[0, 2\).*weight 0"):
        getattr(metrics, name)(labels, [0, 0], 2)
    ((value, _),) = compiled([name], np.array(labels), np.array([0, 0]), 2)
    assert np.isnan(value)


def test_unknown_predictions():
    with pytest.raises(ValueError, match=r"predictions must be.*\[0, 2\)"):
        metrics.mean_iou([0, 0], [0, 2], 2)
    ((value, _),) = compiled(["mean_iou"], np.array([0, 0]), np.array([0, 2]), 2)
    assert np.isnan(value)
    assert_same("mean_per_class_accuracy", np.array([0, 1]), np.array([0, 9]), 2)
