"""Calls of `tf.contrib.metrics`."""

import tensorflow.compat.v1 as tf

from contrib_calls.calling import floats, probabilities, x

LABELS = [True, False, True, True, False, False, True, False]
GUESSES = [True, False, False, True, True, False, True, True]
LABELS_BY_NUMBER = [int(label) for label in LABELS]
GUESSES_BY_NUMBER = [int(guess) for guess in GUESSES]
WEIGHTS = [1.0, 2.0, 0.5, 1.0, 0.0, 1.0, 1.0, 3.0]


def _streamed(make):
    """Returns a call with a metric after two updates, and the second result."""

    def call(contrib):
        value, update = make(contrib.metrics)
        return {"update": update, "then": [value, update]}

    return call


def _of_classes(name, **kwargs):
    return _streamed(
        lambda m: getattr(m, name)(
            tf.constant(GUESSES),
            tf.constant(LABELS),
            tf.constant(WEIGHTS),
            **kwargs,
        )
    )


def _of_scores(name, **kwargs):
    return _streamed(
        lambda m: getattr(m, name)(
            predictions=probabilities(8),
            labels=tf.constant(LABELS),
            **kwargs,
        )
    )


def _of_numbers(name, *arguments):
    return _streamed(
        lambda m: getattr(m, name)(
            x(4, 3), x(4, 3, start=2.0), *arguments, weights=x(4, 1) + 1.0
        )
    )


def _of_ranks(name, **kwargs):
    return _streamed(
        lambda m: getattr(m, name)(
            x(3, 4), tf.constant([[1], [3], [0]], tf.int64), k=2, **kwargs
        )
    )


def _of_top(name, **kwargs):
    return _streamed(
        lambda m: getattr(m, name)(
            top_k_predictions=tf.constant([[1, 0], [2, 3], [1, 2]], tf.int64),
            labels=tf.constant([[1], [3], [0]], tf.int64),
            **kwargs,
        )
    )


def _aggregated(contrib):
    values, updates = contrib.metrics.aggregate_metrics(
        contrib.metrics.streaming_mean(x(3)),
        contrib.metrics.streaming_mean(x(4)),
    )
    return {"update": updates, "then": values}


def _mapped(contrib):
    values, updates = contrib.metrics.aggregate_metric_map(
        {"a": contrib.metrics.streaming_mean(x(3))}
    )
    return {"update": list(updates.values()), "then": values}


def _area_by_histogram(contrib):
    area, update = contrib.metrics.auc_using_histogram(
        tf.constant(LABELS), probabilities(8), [0.0, 1.0], 10
    )
    return {"update": update, "then": area}


THRESHOLDS = [0.2, 0.5, 0.7]
CALLS = {
    "accuracy": lambda c: c.metrics.accuracy(
        tf.constant(GUESSES), tf.constant(LABELS), tf.constant(WEIGHTS)
    ),
    "aggregate_metric_map": _mapped,
    "aggregate_metrics": _aggregated,
    "auc_using_histogram": _area_by_histogram,
    "auc_with_confidence_intervals": _of_scores("auc_with_confidence_intervals"),
    "cohen_kappa": _streamed(
        lambda m: m.cohen_kappa(
            tf.constant(LABELS_BY_NUMBER), tf.constant(GUESSES_BY_NUMBER), 2
        )
    ),
    "count": _streamed(lambda m: m.count(x(3, 2))),
    "f1_score": _of_scores("f1_score", num_thresholds=5),
    "precision_at_recall": _of_scores(
        "precision_at_recall", target_recall=0.6, num_thresholds=9
    ),
    "precision_recall_at_equal_thresholds": _of_scores(
        "precision_recall_at_equal_thresholds", num_thresholds=5
    ),
    "recall_at_precision": _of_scores(
        "recall_at_precision", precision=0.6, num_thresholds=9
    ),
    "sparse_recall_at_top_k": _of_top("sparse_recall_at_top_k"),
    "streaming_accuracy": _of_classes("streaming_accuracy"),
    "streaming_auc": _of_scores("streaming_auc", num_thresholds=9),
    "streaming_auc, PR": _of_scores("streaming_auc", num_thresholds=9, curve="PR"),
    "streaming_concat": _streamed(lambda m: m.streaming_concat(x(3, 2))),
    "streaming_concat, some": _streamed(
        lambda m: m.streaming_concat(x(3, 2), max_size=4)
    ),
    "streaming_covariance": _of_numbers("streaming_covariance"),
    "streaming_curve_points": _of_scores("streaming_curve_points", num_thresholds=5),
    "streaming_dynamic_auc": _of_scores("streaming_dynamic_auc"),
    **{
        f"streaming_{name}": _of_classes(f"streaming_{name}")
        for name in (
            "false_negative_rate",
            "false_negatives",
            "false_positive_rate",
            "false_positives",
            "precision",
            "recall",
            "true_negatives",
            "true_positives",
        )
    },
    **{
        f"streaming_{name}_at_thresholds": _of_scores(
            f"streaming_{name}_at_thresholds", thresholds=THRESHOLDS
        )
        for name in (
            "false_negative_rate",
            "false_negatives",
            "false_positive_rate",
            "false_positives",
            "precision",
            "recall",
            "true_negatives",
            "true_positives",
        )
    },
    "streaming_mean": _streamed(lambda m: m.streaming_mean(x(4), WEIGHTS[:4])),
    "streaming_mean_absolute_error": _of_numbers("streaming_mean_absolute_error"),
    "streaming_mean_cosine_distance": _of_numbers("streaming_mean_cosine_distance", 1),
    "streaming_mean_iou": _streamed(
        lambda m: m.streaming_mean_iou(
            tf.constant(GUESSES_BY_NUMBER), tf.constant(LABELS_BY_NUMBER), 2
        )
    ),
    "streaming_mean_relative_error": _of_numbers(
        "streaming_mean_relative_error", floats(4, 3) + 2
    ),
    "streaming_mean_squared_error": _of_numbers("streaming_mean_squared_error"),
    "streaming_mean_tensor": _streamed(lambda m: m.streaming_mean_tensor(x(2, 3))),
    "streaming_pearson_correlation": _of_numbers("streaming_pearson_correlation"),
    "streaming_percentage_less": _streamed(
        lambda m: m.streaming_percentage_less(x(7), 0.3)
    ),
    "streaming_recall_at_k": _streamed(
        lambda m: m.streaming_recall_at_k(x(3, 4), tf.constant([1, 3, 0], tf.int64), 2)
    ),
    "streaming_root_mean_squared_error": _of_numbers(
        "streaming_root_mean_squared_error"
    ),
    "streaming_sensitivity_at_specificity": _of_scores(
        "streaming_sensitivity_at_specificity",
        specificity=0.4,
        num_thresholds=9,
    ),
    "streaming_sparse_average_precision_at_k": _of_ranks(
        "streaming_sparse_average_precision_at_k"
    ),
    "streaming_sparse_average_precision_at_top_k": _of_top(
        "streaming_sparse_average_precision_at_top_k"
    ),
    "streaming_sparse_precision_at_k": _of_ranks("streaming_sparse_precision_at_k"),
    "streaming_sparse_precision_at_top_k": _of_top(
        "streaming_sparse_precision_at_top_k", class_id=1
    ),
    "streaming_sparse_recall_at_k": _of_ranks("streaming_sparse_recall_at_k"),
    "streaming_specificity_at_sensitivity": _of_scores(
        "streaming_specificity_at_sensitivity",
        sensitivity=0.4,
        num_thresholds=9,
    ),
}
