import numpy as np
import pytest
from metrics_oracle import assert_same

from keras_tpu_estimator import metrics

AT_K = ["precision_at_k", "recall_at_k"]
ALL_AT_K = [*AT_K, "average_precision_at_k"]
AT_TOP_K = ["precision_at_top_k", "recall_at_top_k"]
NUM_CLASSES = 6
_rng = np.random.default_rng(5)


def _scores(*shape):
    # Many scores are equal, so the lower class wins.
    scores = _rng.integers(0, 4, size=(*shape, NUM_CLASSES))
    return scores.astype("float32")


@pytest.mark.parametrize(
    ("k", "class_id", "labels", "is_weighted"),
    [
        (1, None, (7,), False),
        (1, 2, (7,), True),
        (3, None, (7,), True),
        (3, 2, (7, 3), False),
        (3, None, (7, 3), True),
        (3, 2, (7, 1), True),
        (NUM_CLASSES, None, (7, 3), False),
        (NUM_CLASSES, 2, (7, 3), True),
    ],
)
def test_at_k(k, class_id, labels, is_weighted):
    weights = _rng.random(7).astype("float32")
    kwargs = {"weights": weights} if is_weighted else {}

    assert_same(
        AT_K,
        _rng.integers(0, NUM_CLASSES, size=labels),
        _scores(7),
        k,
        class_id,
        **kwargs,
    )


@pytest.mark.parametrize("weights", [None, (2, 5), (1, 5), (2, 1), ()])
def test_at_k_of_higher_rank(weights):
    labels = _rng.integers(0, NUM_CLASSES, size=(2, 5, 2))
    if weights is not None:
        weights = np.array(_rng.random(weights), "float32")

    assert_same(ALL_AT_K, labels, _scores(2, 5), 2, weights=weights)


@pytest.mark.parametrize(
    "labels",
    [
        [[1, 1], [2, 2]],
        [[1, -1], [2, -1]],
        [[1, 9], [NUM_CLASSES, 2]],
        [[3, 0], [-1, 7]],
    ],
)
def test_equal_labels_and_labels_out_of_range(labels):
    scores = np.float32([[1, 3, 4, 2, 0, 0], [5, 1, 2, 7, 0, 0]])

    assert_same(ALL_AT_K, np.array(labels), scores, 2)


def test_class_without_examples_gives_nan():
    labels, scores = np.array([1]), np.float32([[3, 2, 0]])

    assert_same(AT_K, labels, scores, 1, class_id=2)
    assert np.isnan(metrics.recall_at_k(labels, scores, 1, class_id=2)[0])


@pytest.mark.parametrize(
    ("k", "labels", "is_weighted"),
    [
        (1, (7,), False),
        (2, (7, 1), True),
        (2, (7, 3), False),
        (4, (7, 3), True),
    ],
)
def test_average_precision(k, labels, is_weighted):
    weights = _rng.random(7).astype("float32")
    kwargs = {"weights": weights} if is_weighted else {}

    assert_same(
        "average_precision_at_k",
        _rng.integers(0, NUM_CLASSES, size=labels),
        _scores(7),
        k,
        **kwargs,
    )


def test_average_precision_without_labels_is_nan():
    assert_same("average_precision_at_k", np.array([[-1]]), np.float32([[1, 2]]), 1)


@pytest.mark.parametrize("class_id", [None, 1])
@pytest.mark.parametrize("weights", [None, 0.5])
def test_given_predictions(class_id, weights):
    labels = np.array([[1, 2], [0, 0], [3, 1]])
    predictions_idx = np.array([[1, 3, 1], [0, 2, 5], [2, 2, 2]])

    assert_same(AT_TOP_K, labels, predictions_idx, class_id=class_id, weights=weights)


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("name", ALL_AT_K)
def test_bad_k(name, k):
    with pytest.raises(ValueError, match=rf"`k` must be between 1.*k={k}.*\(1, 3\)"):
        getattr(metrics, name)([0], [[1.0, 2.0, 3.0]], k)


@pytest.mark.parametrize("labels", [(3,), (3, 2), (2, 1, 1), ()])
def test_mismatched_shapes_are_refused(labels):
    with pytest.raises(ValueError, match=r"\[\.\.\., num_labels\].*Received"):
        metrics.recall_at_k(np.zeros(labels, int), np.zeros((2, 3)), 1)


def test_bad_weights():
    with pytest.raises(ValueError, match=r"shape \(3,\).*shape \(2,\)"):
        metrics.recall_at_k([0, 1], np.zeros((2, 3)), 1, weights=[1, 1, 1])
