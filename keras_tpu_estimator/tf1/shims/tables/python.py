"""Names of `tensorflow.python`, which were never public and still imported.

Those of `LOST` are of modules that TensorFlow still has, from where tf_slim
takes them, too.
"""

from keras_tpu_estimator.tf1.shims.tables.area import Area
from keras_tpu_estimator.tf1.shims.tables.area import same
from keras_tpu_estimator.tf1.shims.tables.contrib_tpu import OF_A_COPY

_FRAMEWORK = "tensorflow.python.framework."
_OPS = "tensorflow.python.ops."

PYTHON = Area(
    "python",
    {
        "training.gen_training_ops": f"{_OPS}gen_training_ops",
        "training.training_ops": f"{_OPS}gen_training_ops",
        "layers.layers.BatchNormalization": "tf.layers.BatchNormalization",
        "layers.layers.batch_normalization": "tf.layers.batch_normalization",
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
LOST = (
    Area(
        "python.framework.graph_util",
        same("convert_variables_to_constants", "tf.graph_util."),
    ),
    Area(
        "python.framework.graph_util_impl",
        same("convert_variables_to_constants", "tf.graph_util."),
    ),
    Area(
        "python.framework.ops",
        {
            "Tensor": "tf.Tensor",
            **same(
                "IndexedSlices IndexedSlicesValue "
                "convert_n_to_tensor_or_indexed_slices "
                "convert_to_tensor_or_indexed_slices "
                "internal_convert_n_to_tensor_or_indexed_slices "
                "internal_convert_to_tensor_or_indexed_slices",
                f"{_FRAMEWORK}indexed_slices:",
            ),
            **same("convert_to_tensor_v2", f"{_FRAMEWORK}tensor_conversion:"),
            **same(
                "disable_tensor_equality enable_tensor_equality "
                "register_tensor_conversion_function",
                "tf.",
            ),
        },
    ),
    Area(
        "python.framework.tensor_util",
        same("maybe_set_static_shape shape_tensor", f"{_OPS}shape_util:"),
    ),
    Area("python.ops.array_ops", same("stack unstack", "tf.")),
    Area(
        "python.ops.control_flow_ops",
        same("Assert case cond switch_case while_loop", "tf."),
    ),
    Area("python.ops.math_ops", same("bessel_i0e bessel_i1e", "tf.math.")),
    Area(
        "python.ops.nn",
        same(
            "bidirectional_dynamic_rnn dynamic_rnn raw_rnn static_rnn "
            "static_state_saving_rnn",
            "tf.nn.",
        ),
    ),
    Area("python.ops.random_ops", same("random_crop", "tf.")),
    Area("python.ops.standard_ops", same("random_crop stack unstack", "tf.")),
    Area(
        "python.ops.variable_scope",
        {
            "variable": "tf.Variable",
            **same(
                "disable_resource_variables enable_resource_variables "
                "resource_variables_enabled",
                "tf.",
            ),
        },
    ),
    Area(
        "python.ops.variables",
        {
            "RefVariable": f"{_OPS}ref_variable:RefVariable",
            "VariableV1": "tf.Variable",
            "is_variable_initialized": "tf.is_variable_initialized",
        },
    ),
    Area("python.util.nest", {"is_sequence": "tf.nest.is_nested"}),
)
