"""Names of `tf.contrib.tpu` and `tf.contrib.cluster_resolver`."""

from keras_tpu_estimator.tf1.shims.tables.area import Area
from keras_tpu_estimator.tf1.shims.tables.area import missing
from keras_tpu_estimator.tf1.shims.tables.area import same

_ESTIMATOR = "InputPipelineConfig RunConfig TPUConfig TPUEstimatorSpec"
_LOOP = (
    "The loop over steps is TPUEstimator's, with all that is queued for it. "
    "Put the model into a `model_fn`."
)
_KERAS = "Wrap the model with keras_tpu_estimator.from_keras."
OF_A_COPY = (
    "It is a copy of TensorFlow's tpu_estimator.py that imports it. Use "
    "tf.contrib.tpu.TPUEstimator in place of the copy."
)
_SESSION = "There is no session to look after. Leave the hook out."

TPU = Area(
    "contrib.tpu",
    {
        **same(f"{_ESTIMATOR} TPUEstimator", "tf.estimator.tpu."),
        **same(
            "CrossShardOptimizer bfloat16_scope core cross_replica_sum "
            "initialize_system outside_compilation shutdown_system",
            "tf.tpu.",
        ),
        # Checkpoints are written in the background anyway.
        "AsyncCheckpointSaverHook": "tf.train.CheckpointSaverHook",
        "python.ops.tpu_ops": "tensorflow.python.tpu.ops.tpu_ops",
        "python.tpu.async_checkpoint": "tf.contrib.tpu",
        "python.tpu.bfloat16": "tensorflow.python.tpu.bfloat16",
        "python.tpu.device_assignment": (
            "tensorflow.python.tpu.device_assignment"
        ),
        "python.tpu.tpu": "tensorflow.python.tpu.tpu",
        "python.tpu.tpu_config": "tf.contrib.tpu",
        "python.tpu.tpu_feed": "tensorflow.python.tpu.tpu_feed",
        "python.tpu.tpu_function": "tensorflow.python.tpu.tpu_function",
        "python.tpu.tpu_optimizer": "tensorflow.python.tpu.tpu_optimizer",
        "python.tpu.training_loop": "tensorflow.python.tpu.training_loop",
        **{
            f"python.tpu.tpu_estimator.{name}": f"tf.estimator.tpu.{name}"
            for name in (*_ESTIMATOR.split(), "TPUEstimator")
        },
        **{
            f"python.tpu.tpu_estimator.{name}": (
                f"keras_tpu_estimator.export:{name}"
            )
            for name in (
                "BatchConfig",
                "inference_on_tpu",
                "model_fn_inference_on_tpu",
            )
        },
        "python.tpu.tpu_estimator.ExportSavedModelApiVersion": (
            "keras_tpu_estimator.tf1_tools.tf_estimator.tpu:ExportSavedModelApiVersion"
        ),
    },
    {
        **missing("batch_parallel replicate rewrite shard", _LOOP),
        **missing("repeat while_loop InfeedQueue", _LOOP),
        **missing("TPUDistributionStrategy keras_to_tpu_model", _KERAS),
        **missing(
            "AdagradParameters AdamParameters "
            "StochasticGradientDescentParameters TPUEmbedding",
            "Make tables with tf.feature_column.embedding_column.",
        ),
        "TPUInfeedOutfeedSessionHook": _SESSION,
        "RewritesForTPU": _LOOP,
    },
    advice="It drove a TPU from TensorFlow; JAX does that here. Leave it out.",
)
# The modules of its implementation that programs imported.
PYTHON_TPU = Area("contrib.tpu.python.tpu", advice=TPU.advice)
ERROR_HANDLING = Area("contrib.tpu.python.tpu.error_handling", advice=_SESSION)
SESSION_SUPPORT = Area(
    "contrib.tpu.python.tpu.session_support", advice=_SESSION
)
TENSOR_TRACER = Area(
    "contrib.tpu.python.tpu.tensor_tracer",
    advice="Set RunConfig(debug_nans=True) to find where a NaN comes from.",
)
TPU_CONTEXT = Area(
    "contrib.tpu.python.tpu.tpu_context",
    advice="Ask params['context'] in `input_fn`.",
)
UTIL = Area("contrib.tpu.python.tpu.util", advice=_SESSION)
PROTO = Area(
    "contrib.tpu.proto",
    advice=OF_A_COPY,
)
PROFILER = Area(
    "contrib.tpu.profiler", advice="Use tf.train.ProfilerHook, or JAX's."
)
CLUSTER_RESOLVER = Area(
    "contrib.cluster_resolver",
    {
        **same(
            "TPUClusterResolver",
            "keras_tpu_estimator.tf1.reimplemented.cluster_resolver:",
        ),
        **same(
            "ClusterResolver SimpleClusterResolver UnionResolver",
            "tf.distribute.cluster_resolver.",
        ),
        "UnionClusterResolver": "tf.distribute.cluster_resolver.UnionResolver",
        "python.training.tpu_cluster_resolver": "tf.contrib.cluster_resolver",
    },
    advice="The hosts are found by keras_tpu_estimator.initialize.",
)
