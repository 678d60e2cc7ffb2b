import inspect
import re

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from metrics_oracle import compiled, eager

from keras_tpu_estimator import metrics

LABELS = np.array([0, 1, 1, 0, 1])
PREDICTIONS = np.array([0, 1, 0, 0, 1])
# Arguments of each function besides labels and predictions.
ON_LABELS = {
    "accuracy": {},
    "auc": {},
    "false_negatives": {},
    "false_negatives_at_thresholds": {"thresholds": [0.5]},
    "false_positives": {},
    "false_positives_at_thresholds": {"thresholds": [0.5]},
    "mean_absolute_error": {},
    "mean_cosine_distance": {"dim": 0},
    "mean_iou": {"num_classes": 2},
    "mean_per_class_accuracy": {"num_classes": 2},
    "mean_relative_error": {"normalizer": [1.0, 2.0, 1.0, 0.0, 1.0]},
    "mean_squared_error": {},
    "precision": {},
    "precision_at_thresholds": {"thresholds": [0.5]},
    "recall": {},
    "recall_at_thresholds": {"thresholds": [0.5]},
    "root_mean_squared_error": {},
    "sensitivity_at_specificity": {"specificity": 0.5},
    "specificity_at_sensitivity": {"sensitivity": 0.5},
    "true_negatives": {},
    "true_negatives_at_thresholds": {"thresholds": [0.5]},
    "true_positives": {},
    "true_positives_at_thresholds": {"thresholds": [0.5]},
}
ON_VALUES = {
    "mean": {},
    "mean_tensor": {},
    "percentage_below": {"threshold": 1},
}
ON_RANKS = {
    "average_precision_at_k": {"k": 1},
    "precision_at_k": {"k": 1},
    "precision_at_top_k": {},
    "recall_at_k": {"k": 1},
    "recall_at_top_k": {},
}


@pytest.mark.rows(8)
@pytest.mark.parametrize("name", ON_LABELS)
def test_eager_equals_compiled(name):
    kwargs = {**ON_LABELS[name], "weights": np.float32(0.5)}
    ((ours, _),) = eager([name], LABELS, PREDICTIONS, **kwargs)
    ((expected, _),) = compiled([name], LABELS, PREDICTIONS, **kwargs)

    np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_every_function_is_in_a_table():
    assert sorted(ON_LABELS | ON_VALUES | ON_RANKS) == sorted(metrics.__all__)


@pytest.mark.parametrize("name", metrics.__all__)
def test_arguments_match_tensorflow(name):
    import tensorflow as tf

    theirs = inspect.signature(getattr(tf.compat.v1.metrics, name)).parameters
    ours = inspect.signature(getattr(metrics, name)).parameters
    collections = ("metrics_collections", "updates_collections")

    assert [(p.name, p.default) for p in ours.values()] == [
        (p.name, p.default) for p in theirs.values() if p.name not in collections
    ]


KINDS = {
    "list": np.ndarray.tolist,
    "jax": jnp.asarray,
    "variable": keras.Variable,
    **{
        dtype: lambda array, dtype=dtype: array.astype(dtype)
        for dtype in ("bool", "uint8", "int64", "float32", "float64")
    },
}


@pytest.mark.rows(6)
@pytest.mark.parametrize("name", ON_LABELS)
def test_kinds_of_inputs(name):
    function, kwargs = getattr(metrics, name), ON_LABELS[name]
    expected, _ = function(LABELS, PREDICTIONS, **kwargs)
    for kind, convert in KINDS.items():
        value, _ = function(convert(LABELS), convert(PREDICTIONS), **kwargs)
        assert value.dtype == np.float32, kind
        np.testing.assert_allclose(value, expected, rtol=1e-6, err_msg=kind)


@pytest.mark.parametrize("name", ON_LABELS)
def test_mismatched_shapes_are_refused(name):
    logits = np.zeros((5, 2), "float32")

    with pytest.raises(ValueError, match=r"\(5,\).*\(5, 2\).*argmax"):
        getattr(metrics, name)(LABELS, logits, **ON_LABELS[name])


@pytest.mark.parametrize("name", ON_LABELS)
def test_mismatched_weights_are_refused(name):
    values = (1,) if name == "mean_cosine_distance" else (5,)
    for shape in [(4,), (5, 2), (1, 5), (1, 1, 5)]:
        message = f"weights of shape {shape} for values of shape {values}"
        with pytest.raises(ValueError, match=re.escape(message)):
            getattr(metrics, name)(
                LABELS, PREDICTIONS, weights=np.ones(shape), **ON_LABELS[name]
            )


@pytest.mark.parametrize("name", ON_VALUES)
def test_weights_must_match_values(name):
    with pytest.raises(ValueError, match=r"shape \(3,\).*shape \(2,\)"):
        getattr(metrics, name)(
            values=[1.0, 2.0], weights=[1.0, 1.0, 1.0], **ON_VALUES[name]
        )


def test_mismatched_normalizer_is_refused():
    with pytest.raises(ValueError, match=r"normalizer.*\(5,\).*\(3,\)"):
        metrics.mean_relative_error(LABELS, PREDICTIONS, [1.0, 2.0, 3.0])


def test_small_unsigned_integers_do_not_wrap_around():
    value, _ = metrics.mean_absolute_error(np.uint8([200]), np.uint8([100]))

    assert value == 100


@pytest.mark.rows(2)
@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"]
)
def test_classes_of_narrow_dtypes(dtype):
    # Some dtypes cannot represent the number of classes.
    labels, found = np.array([[5], [8], [100]], dtype), [261, 8, 100]
    scores = np.zeros((3, 300), "float32")
    scores[range(3), found] = 1.0
    value, _ = metrics.accuracy(labels, found)
    assert value == pytest.approx(2 / 3)
    value, _ = metrics.average_precision_at_k(labels, scores, k=1)
    assert value == pytest.approx(2 / 3)
    # No label has this class, even truncated to eight bits.
    for class_id in (256 + 5, 256 + 100):
        value, _ = metrics.recall_at_k(labels, scores, k=1, class_id=class_id)
        assert np.isnan(value)
