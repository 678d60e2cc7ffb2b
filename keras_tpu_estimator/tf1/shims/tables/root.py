"""Names directly below `tf`, and in modules that TensorFlow still has."""

from keras_tpu_estimator.tf1.shims.tables.area import Area
from keras_tpu_estimator.tf1.shims.tables.contrib_tpu import OF_A_COPY

_KERAS = "tf_keras.api._v1.keras"
_EXAMPLES = "keras_tpu_estimator.tf1.reimplemented.examples"

ROOT = Area(
    "",
    {
        "compat.v1": "tf.",
        "distribute.cluster_resolver.TPUClusterResolver": (
            "tf.contrib.cluster_resolver.TPUClusterResolver"
        ),
        # As functions of the old Keras: those of Keras 3 make no TF1 graphs.
        "keras": _KERAS,
        "layers": f"{_KERAS}.__internal__.legacy.layers",
        "nn.rnn_cell": f"{_KERAS}.__internal__.legacy.rnn_cell",
        # They take what newer protocol buffers refuse.
        "train.FloatList": f"{_EXAMPLES}:FloatList",
        "train.Int64List": f"{_EXAMPLES}:Int64List",
    },
    rest="tensorflow.compat.v1",
)
CORE = Area("core", rest="tensorflow.core")
# What programs imported from places that were never public.
PYTHON = Area(
    "python",
    {
        "framework.ops.Tensor": "tf.Tensor",
        "ops.array_ops.stack": "tf.stack",
        "ops.control_flow_ops.cond": "tf.cond",
        "ops.control_flow_ops.while_loop": "tf.while_loop",
        "training.training_ops": "tensorflow.python.ops.gen_training_ops",
        "estimator.estimator": "tf.estimator",
        "estimator.estimator_lib": "tf.estimator",
        "estimator.export.export": "tf.estimator.export",
        "estimator.export.export_output": "tf.estimator.export",
        "estimator.exporter": "tf.estimator",
        "estimator.inputs.inputs": "tf.estimator.inputs",
        "estimator.inputs.numpy_io": "tf.estimator.inputs",
        "estimator.model_fn": "tf.estimator",
        "estimator.run_config": "tf.estimator",
        "estimator.training": "tf.estimator",
        "estimator.warm_starting_util": "tf.estimator",
        "tpu.tpu_config": "tf.contrib.tpu.python.tpu.tpu_config",
        "tpu.tpu_estimator": "tf.contrib.tpu.python.tpu.tpu_estimator",
    },
    missing={"estimator.util": OF_A_COPY},
    rest="tensorflow.python",
)
EXAMPLES = Area(
    "examples",
    advice="It only read data sets. Read yours with NumPy or tf.data.",
)
