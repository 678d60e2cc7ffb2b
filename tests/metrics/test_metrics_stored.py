"""Tests that the stored results are those of TensorFlow."""

import numpy as np
import pytest
from metrics_oracle import live_values, tf_values

_rng = np.random.default_rng(8)
_LABELS, _CLASSES = _rng.integers(0, 3, size=(2, 12))
_BITS = _LABELS > 0
_PROBABILITIES = _rng.random(12).astype("float32")
_SCORES = _rng.random((12, 3)).astype("float32")
CALLS = {
    "accuracy": (_LABELS, _CLASSES),
    "mean_iou": (_LABELS, _CLASSES, 3),
    "mean_squared_error": (_PROBABILITIES, 1 - _PROBABILITIES),
    "auc": (_BITS, _PROBABILITIES),
    "recall_at_thresholds": (_BITS, _PROBABILITIES, [0.2, 0.7]),
    "precision_at_k": (_LABELS, _SCORES, 2),
}


@pytest.mark.parametrize("name", CALLS)
def test_stored_results_match_tensorflow(name):
    stored = tf_values([name], *CALLS[name])
    live = live_values([name], *CALLS[name])
    for ours, theirs in zip(stored[0], live[0], strict=True):
        np.testing.assert_array_equal(ours, theirs)
