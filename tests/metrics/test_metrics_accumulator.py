import dataclasses

import keras
import numpy as np
import pytest

from keras_tpu_estimator import metrics
from keras_tpu_estimator.api.metrics.accumulator import (
    Accumulator,
    Examples,
    accumulate,
)
from keras_tpu_estimator.api.metrics.averages import Average
from keras_tpu_estimator.api.metrics.classes import ClassSums, ConfusionMatrix
from keras_tpu_estimator.api.metrics.confusion import Confusion
from keras_tpu_estimator.api.metrics.ranking import Retrieved
from keras_tpu_estimator.api.metrics.thresholds import confusion_at

_rng = np.random.default_rng(6)
_labels, _classes = _rng.integers(0, 2, size=(2, 40))
_probabilities = _rng.random(40).astype("float32")
_scores = _rng.random((40, 3)).astype("float32")
_weights = _rng.random(40).astype("float32")


def _examples(predictions, rows):
    return Examples.from_tensors(_labels[rows], predictions[rows], _weights[rows])


STATISTICS = {
    "average": lambda rows: Average.from_values(_probabilities[rows], _weights[rows]),
    "confusion": lambda rows: Confusion.from_examples(_examples(_classes, rows)),
    "thresholds": lambda rows: confusion_at(
        _examples(_probabilities, rows), [0.2, 0.5, 0.9]
    ),
    "class sums": lambda rows: ClassSums.from_examples(_examples(_classes, rows), 2),
    "matrix": lambda rows: ConfusionMatrix.from_examples(_examples(_classes, rows), 2),
    "retrieved": lambda rows: Retrieved.from_ids(
        _labels[rows], _scores[rows].argsort()[:, :2], None, _weights[rows]
    ),
}


@pytest.mark.rows(3)
@pytest.mark.parametrize("statistics", STATISTICS.values(), ids=STATISTICS)
def test_batches_are_accumulated(statistics):
    accumulator = Accumulator("metric")
    for rows in (slice(0, 20), slice(20, 40)):
        totals = accumulator.add(statistics(rows))
    expected = statistics(slice(0, 40))

    assert type(totals) is type(expected)
    for field in dataclasses.fields(expected):
        np.testing.assert_allclose(
            getattr(totals, field.name),
            getattr(expected, field.name),
            rtol=1e-6,
        )


def test_variables_are_local_float32_sums():
    accumulator = Accumulator("tokens/accuracy")
    accumulator.add(Average.from_values(np.float32([1, 0]), None))

    assert [v.path for v in accumulator.variables] == [
        "tokens>accuracy/weighted_sum",
        "tokens>accuracy/total_weight",
    ]
    for variable in accumulator.variables:
        assert variable.dtype == "float32"
        assert variable.synchronization == "on_read"
        assert not variable.trainable


@pytest.fixture
def made(monkeypatch):
    """The paths of the accumulators' variables, in the order of creation."""
    paths = []
    add_variable = Accumulator.add_variable

    def spy(self, *args, **kwargs):
        variable = add_variable(self, *args, **kwargs)
        paths.append(variable.path)
        return variable

    monkeypatch.setattr(Accumulator, "add_variable", spy)
    keras.backend.clear_session(free_memory=False)
    return paths


def test_names_are_numbered(made):
    metrics.mean([1.0])
    metrics.accuracy([1], [1])
    metrics.mean([1.0])

    assert [path.split("/")[0] for path in made[::2]] == [
        "mean",
        "accuracy",
        "mean_1",
    ]


@pytest.mark.parametrize("name", ["mean", "precision", "auc", "mean_iou"])
def test_given_names_are_kept(made, name):
    kwargs = {"values": [1.0]} if name == "mean" else {}
    if name != "mean":
        kwargs = {"labels": [0, 1], "predictions": [0, 1]}
    if name == "mean_iou":
        kwargs["num_classes"] = 2
    getattr(metrics, name)(**kwargs, name="mine")

    assert {path.split("/")[0] for path in made} == {"mine"}


def test_default_name_is_the_functions_name(made):
    metrics.root_mean_squared_error([1.0], [2.0])
    metrics.recall_at_top_k([[1]], [[1]])
    metrics.mean_tensor([1.0])

    assert [path.split("/")[0] for path in made] == [
        *["root_mean_squared_error"] * 2,
        *["recall_at_top_k"] * 3,
        *["mean_tensor"] * 2,
    ]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (metrics.accuracy, keras.metrics.Accuracy),
        (metrics.mean_squared_error, keras.metrics.MeanSquaredError),
        (metrics.precision, keras.metrics.Precision),
        (metrics.auc, keras.metrics.AUC),
    ],
)
def test_keras_metrics_have_other_paths(made, ours, theirs):
    ours([0, 1], [0, 1])
    paths = {variable.path for variable in theirs().variables}

    assert paths.isdisjoint(made)


def test_calls_outside_a_scope_are_independent():
    batch = Average.from_values(np.float32([2, 4]), None)

    for _ in range(2):
        assert accumulate(batch, "mine", "mean").total_weight == 2
