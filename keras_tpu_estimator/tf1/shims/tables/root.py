"""Names directly below `tf`."""

from keras_tpu_estimator.tf1.shims.tables.area import Area

_KERAS = "tf_keras.api._v1.keras"
_CLUSTER = "keras_tpu_estimator.tf1.reimplemented.cluster_resolver"
_EXAMPLES = "keras_tpu_estimator.tf1.reimplemented.examples"

ROOT = Area(
    "",
    {
        "compat.v1": "tf.",
        # They are for eager execution.
        "config.experimental_connect_to_cluster": (
            f"{_CLUSTER}:experimental_connect_to_cluster"
        ),
        "tpu.experimental.initialize_tpu_system": (
            f"{_CLUSTER}:initialize_tpu_system"
        ),
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
EXAMPLES = Area(
    "examples",
    advice="It only read data sets. Read yours with NumPy or tf.data.",
)
