import numpy as np
import pytest
from metrics_oracle import assert_same

DISTANCES = [
    "mean_absolute_error",
    "mean_squared_error",
    "root_mean_squared_error",
]
MEANS = ["mean", "mean_tensor"]
_rng = np.random.default_rng(1)


def _floats(*shape):
    return _rng.normal(size=shape).astype("float32")


def _ids(*shape):
    return _rng.integers(0, 3, size=shape)


def _weights(*shape):
    return _rng.integers(0, 3, size=shape).astype("float32") * np.float32(0.7)


# Shapes of labels, predictions and weights; `None` for no weights.
SHAPES = [
    ((12,), (12,), None),
    ((12,), (12,), (12,)),
    ((12,), (12,), ()),
    ((12,), (12,), (12, 1)),
    ((12, 1), (12,), None),
    ((12,), (12, 1), (12,)),
    ((12, 1), (12, 1), (12,)),
    ((4, 3), (4, 3), None),
    ((4, 3), (4, 3), (4,)),
    ((4, 3), (4, 3), (4, 1)),
    ((4, 3), (4, 3), (1, 3)),
    ((2, 3, 4), (2, 3, 4), (2, 3, 4)),
    ((2, 3, 4), (2, 3, 4), (1, 3, 1)),
    ((2, 3, 4), (2, 3, 4), (2, 3, 4, 1)),
    ((), (), None),
    ((0,), (0,), (0,)),
]


def _optional_weights(shape):
    return {} if shape is None else {"weights": np.array(_weights(*shape))}


@pytest.mark.parametrize(("labels", "predictions", "weights"), SHAPES)
def test_accuracy(labels, predictions, weights):
    assert_same(
        "accuracy",
        np.array(_ids(*labels)),
        np.array(_ids(*predictions)),
        **_optional_weights(weights),
    )


@pytest.mark.parametrize(("labels", "predictions", "weights"), SHAPES)
def test_distances(labels, predictions, weights):
    assert_same(
        [
            "mean_absolute_error",
            "mean_squared_error",
            "root_mean_squared_error",
        ],
        np.array(_floats(*labels)),
        np.array(_floats(*predictions)),
        **_optional_weights(weights),
    )


@pytest.mark.parametrize(
    ("values", "weights"),
    sorted({(values, weights) for _, values, weights in SHAPES}, key=str),
)
def test_means(values, weights):
    assert_same(MEANS, np.array(_floats(*values)), **_optional_weights(weights))


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool, np.float16])
def test_means_of_other_dtypes(dtype):
    values = np.array([0, 1, 1, 0, 3], dtype)
    weights = np.array([0, 2, 1, 1, 0], dtype)

    assert_same(MEANS, values, weights)


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -1.0], [-2.0, 1.0]])
def test_means_without_positive_weight(weights):
    assert_same(MEANS, np.float32([3, 5]), np.float32(weights))


def test_accuracy_casts_predictions_to_the_dtype_of_labels():
    assert_same("accuracy", np.array([0, 1, 2]), np.float32([0.9, 1.2, 1.8]))
    assert_same("accuracy", np.array([True, False]), np.array([7, 0]))
    assert_same("accuracy", np.float32([0.5, 1.0]), np.array([0, 1]))


@pytest.mark.parametrize("weights", [None, (12,), (3, 4)])
def test_percentage_below(weights):
    shape = (12,) if weights in (None, (12,)) else (3, 4)

    assert_same("percentage_below", _floats(*shape), 0.25, **_optional_weights(weights))


def test_percentage_below_leaves_out_the_threshold():
    assert_same("percentage_below", np.float32([1, 2, 3]), 2.0)


@pytest.mark.parametrize("weights", [None, (6,), (6, 1)])
def test_mean_relative_error(weights):
    labels, predictions = _floats(2, 6)
    normalizer = np.float32([1, 0, 2, -4, 0, 0.5])

    assert_same(
        "mean_relative_error",
        labels,
        predictions,
        normalizer,
        **_optional_weights(weights),
    )


def test_mean_relative_error_of_other_ranks():
    labels, normalizer = _floats(2, 6)

    assert_same("mean_relative_error", labels, _floats(6, 1), normalizer)


@pytest.mark.parametrize(
    ("dim", "weights"),
    [(1, None), (2, None), (-1, None), (2, (2, 3, 1)), (1, (2, 1, 4))],
)
def test_mean_cosine_distance(dim, weights):
    assert_same(
        "mean_cosine_distance",
        _floats(2, 3, 4),
        _floats(2, 3, 4),
        dim,
        **_optional_weights(weights),
    )
