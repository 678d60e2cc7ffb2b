"""Counterparts of metrics, hooks and summaries."""

from keras_tpu_estimator.tf1_tools.porting.records import Row
from keras_tpu_estimator.tf1_tools.porting.records import Section
from keras_tpu_estimator.tf1_tools.porting.records import same

METRICS = Section(
    "7-metrics-hooks-and-summaries",
    (
        same(
            "tf.metrics",
            "kte.metrics",
            "accuracy auc average_precision_at_k false_negatives "
            "false_negatives_at_thresholds false_positives "
            "false_positives_at_thresholds mean mean_absolute_error "
            "mean_cosine_distance mean_iou mean_per_class_accuracy "
            "mean_relative_error mean_squared_error mean_tensor "
            "percentage_below precision precision_at_k "
            "precision_at_thresholds precision_at_top_k recall recall_at_k "
            "recall_at_thresholds recall_at_top_k root_mean_squared_error "
            "sensitivity_at_specificity specificity_at_sensitivity "
            "true_negatives true_negatives_at_thresholds true_positives "
            "true_positives_at_thresholds",
            before="`tf.metrics.accuracy(labels, predictions)` and all others",
            note="without `metrics_collections` and `updates_collections`; "
            "what comes after `weights` by keyword",
        ),
        Row(
            {
                "tf.contrib.metrics.*": "`kte.metrics`",
                "tf.metrics.*": "`kte.metrics`",
            },
            before="`tf.contrib.metrics`",
            now="`kte.metrics`, or `keras.metrics`",
        ),
        same(
            "tf.train",
            "kte.hooks",
            "SessionRunHook SessionRunArgs SessionRunContext SessionRunValues "
            "CheckpointSaverHook CheckpointSaverListener FeedFnHook "
            "FinalOpsHook GlobalStepWaiterHook LoggingTensorHook NanTensorHook "
            "ProfilerHook SecondOrStepTimer StepCounterHook StopAtStepHook "
            "SummarySaverHook",
            before="`tf.train.SessionRunHook`, `tf.train.LoggingTensorHook` "
            "and all others",
            note="[fetches are names](hooks.md)",
        ),
        same(
            "tf.summary",
            "kte.summary",
            "scalar histogram image audio text create_file_writer record_if",
            before="`tf.summary.scalar`, `histogram`, `image`, `audio`, `text`",
            note="also [inside `model_fn`](summaries.md)",
        ),
        Row(
            {
                "tf.contrib.summary.scalar": "`kte.summary.scalar`",
                "tf.contrib.summary.create_file_writer": "`kte.summary."
                "create_file_writer`",
                "tf.contrib.summary.record_summaries_every_n_global_steps": ""
                "`kte.summary.record_if`",
                "tf.contrib.summary.always_record_summaries": "`kte.summary."
                "record_if`",
                "tf.contrib.summary.*": "`kte.summary`",
                "tf.compat.v2.summary.*": "`kte.summary`",
            },
            before="`tf.contrib.summary`, `all_summary_ops()`",
            now="`kte.summary`; nothing has to be run",
        ),
        Row(
            {
                "tf.summary.FileWriter": "`kte.summary.create_file_writer`",
                "tf.summary.merge_all": "nothing",
                "tf.summary.merge": "nothing",
                "tf.summary.*": "`kte.summary`",
            },
            before="`tf.summary.FileWriter`, `tf.summary.merge_all`",
            now="`kte.summary.create_file_writer`, nothing",
        ),
    ),
)
