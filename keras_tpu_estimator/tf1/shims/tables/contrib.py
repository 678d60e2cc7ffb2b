"""Names of `tf.contrib`: areas of few names, and those that are missing."""

from keras_tpu_estimator.tf1.shims.tables.area import Area
from keras_tpu_estimator.tf1.shims.tables.area import same

_CORES = (
    "The batch is split over all cores that JAX has without a strategy: use "
    "tf.contrib.tpu.TPUEstimator with use_tpu=True."
)

CONTRIB = Area(
    "contrib",
    {
        "autograph": "tf.autograph",
        "bitwise": "tf.bitwise",
        "checkpoint": "tf.train",
        "compiler.xla": "tf.xla",
        "distributions": "tf.distributions",
        "keras": "tf.keras",
        "signal": "tf.signal",
    },
)
ESTIMATOR = Area(
    "contrib.estimator",
    {
        **same(
            "InMemoryEvaluatorHook make_early_stopping_hook "
            "make_stop_at_checkpoint_step_hook read_eval_metrics "
            "stop_if_higher_hook stop_if_lower_hook "
            "stop_if_no_decrease_hook stop_if_no_increase_hook",
            "tf.estimator.experimental.",
        ),
        "clip_gradients_by_norm": (
            "keras_tpu_estimator.tf1.reimplemented.estimator:clip_gradients_by_norm"
        ),
    },
    advice="Write a `model_fn`, with the loss and metrics that it made.",
)
FEATURE_COLUMN = Area(
    "contrib.feature_column",
    same(
        "sequence_categorical_column_with_hash_bucket "
        "sequence_categorical_column_with_identity "
        "sequence_categorical_column_with_vocabulary_file "
        "sequence_categorical_column_with_vocabulary_list "
        "sequence_numeric_column",
        "tf.feature_column.",
    ),
    advice="Use tf.feature_column.",
)
LEARN = Area(
    "contrib.learn",
    {
        "ModeKeys": "tf.estimator.ModeKeys",
        "RunConfig": "tf.estimator.RunConfig",
    },
    advice="Use tf.estimator, which followed it. Read data sets with NumPy.",
)
PREDICTOR = Area(
    "contrib.predictor",
    same(
        "from_saved_model", "keras_tpu_estimator.tf1.reimplemented.predictor:"
    ),
    advice="Use tf.contrib.predictor.from_saved_model, or `predict`.",
)
QUANTIZE = Area(
    "contrib.quantize",
    advice="It rewrote graphs for 8 bits. Leave it out, and quantize exports.",
)
UTIL = Area(
    "contrib.util",
    {
        "constant_value": "tf.get_static_value",
        **same("make_ndarray make_tensor_proto", "tf."),
    },
    advice="Use the function of `tf` that is named alike.",
)

CLOUD = Area(
    "contrib.cloud",
    advice="Read the data with tf.data.TFRecordDataset, or with a generator.",
)
COPY_GRAPH = Area("contrib.copy_graph", advice="Call the function again.")
CUDNN_RNN = Area("contrib.cudnn_rnn", advice="Use the cells of tf.nn.rnn_cell.")
DISTRIBUTE = Area("contrib.distribute", advice=_CORES)
EAGER = Area(
    "contrib.eager", advice="A `model_fn` builds a graph. Use tf.metrics."
)
GAN = Area(
    "contrib.gan", advice="Write the two losses, and one train_op of both."
)
GRAPH_EDITOR = Area(
    "contrib.graph_editor", advice="Build the graph as it is to be."
)
LEGACY_SEQ2SEQ = Area(
    "contrib.legacy_seq2seq", advice="Write the loop with tf.while_loop."
)
MEMORY_STATS = Area(
    "contrib.memory_stats", advice="Use jax.Device.memory_stats()."
)
MIXED_PRECISION = Area(
    "contrib.mixed_precision",
    advice="Use tf.contrib.tpu.bfloat16_scope, which scales no loss.",
)
SAVED_MODEL = Area(
    "contrib.saved_model", advice="Use estimator.export_saved_model."
)
TENSORRT = Area("contrib.tensorrt", advice="Convert an exported SavedModel.")
DATASETS = Area(
    "contrib.learn.python.learn.datasets.mnist",
    advice="Read the data with NumPy.",
)
TUTORIALS = Area(
    "examples.tutorials.mnist.input_data", advice="Read the data with NumPy."
)
TFPROF = Area("contrib.tfprof", advice="Use tf.train.ProfilerHook.")
# All others that TensorFlow 1.15 had: there is nothing in them, and importing
# one that is not used does no harm.
OTHERS = tuple(
    Area(f"contrib.{name}")
    for name in (
        "all_reduce batching bayesflow bigtable boosted_trees "
        "constrained_optimization decision_trees deprecated factorization "
        "ffmpeg fused_conv grid_rnn hadoop hooks ignite input_pipeline "
        "integrate kafka kernel_methods kinesis labeled_tensor libsvm "
        "linear_optimizer meta_graph_transform model_pruning nearest_neighbor "
        "optimizer_v2 periodic_resample proto quantization receptive_field "
        "recurrent reduce_slice_ops remote_fused_graph resampler rpc "
        "session_bundle solvers sparsemax specs staging stat_summarizer "
        "tensor_forest tensorboard testing text timeseries"
    ).split()
)
