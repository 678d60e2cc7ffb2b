"""Tests that export outputs expose their arguments, like the original's."""

import numpy as np
import pytest

import keras_tpu_estimator as kte

SCORES = np.zeros((2, 3), "float32")


@pytest.mark.parametrize(
    ("given", "outputs"),
    [
        ({"y": SCORES}, {"y": SCORES}),
        (SCORES, {"output": SCORES}),
        ({("head", "y"): SCORES}, {"head/y": SCORES}),
    ],
)
def test_outputs_of_a_prediction(given, outputs):
    assert kte.export.PredictOutput(given).outputs == outputs


def test_scores_and_classes_of_a_classification():
    names = kte.outside_compilation(as_strings, SCORES)
    both = kte.export.ClassificationOutput(SCORES, names)
    assert both.scores is SCORES
    assert both.classes is names
    assert kte.export.ClassificationOutput(SCORES).classes is None
    assert kte.export.ClassificationOutput(classes=names).scores is None


def test_value_of_a_regression():
    assert kte.export.RegressionOutput(SCORES).value is SCORES


def as_strings(scores):
    import tensorflow as tf

    return tf.strings.as_string(scores)
