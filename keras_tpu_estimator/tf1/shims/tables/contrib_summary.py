"""Names of `tf.contrib.summary`, which programs use in a `host_call`."""

from keras_tpu_estimator.tf1.shims.tables.area import Area
from keras_tpu_estimator.tf1.shims.tables.area import missing
from keras_tpu_estimator.tf1.shims.tables.area import same

# TensorFlow keeps the module, under a name that is not public.
SUMMARY = Area(
    "contrib.summary",
    {
        **same(
            "SummaryWriter always_record_summaries audio create_file_writer "
            "create_summary_file_writer eval_dir flush generic histogram "
            "image import_event initialize never_record_summaries "
            "record_summaries_every_n_global_steps scalar "
            "should_record_summaries summary_writer_initializer_op",
            "tensorflow.python.ops.summary_ops_v2:",
        ),
        "all_summary_ops": (
            "tensorflow.python.ops.summary_ops_v2:all_v2_summary_ops"
        ),
        "graph": "tensorflow.python.ops.summary_ops_v2:graph_v1",
    },
    missing(
        "create_db_writer",
        "Use tf.contrib.summary.create_file_writer, for TensorBoard.",
    ),
)
