"""Counterparts of layers, and of variables and their scopes."""

from keras_tpu_estimator.tf1_tools.porting.records import Row
from keras_tpu_estimator.tf1_tools.porting.records import Section

_POOLS = {
    f"tf.layers.{kind}_pooling{rank}d": f"`keras.layers.{layer}{rank}D`"
    for kind, layer in (("max", "MaxPooling"), ("average", "AveragePooling"))
    for rank in (1, 2, 3)
}

LAYERS = Section(
    "2-layers",
    (
        Row(
            {"tf.layers.dense": "`keras.layers.Dense`"},
            before='`tf.layers.dense(x, 10, name="out")`',
            now='`keras.layers.Dense(10, name="out")(x)`',
        ),
        Row(
            {
                "tf.layers.conv2d": "`keras.layers.Conv2D`",
                "tf.layers.conv1d": "`keras.layers.Conv1D`",
                "tf.layers.conv3d": "`keras.layers.Conv3D`",
                "tf.layers.separable_conv2d": "`keras.layers.SeparableConv2D`",
                "tf.layers.conv2d_transpose": "`keras.layers.Conv2DTranspose`",
            },
            before='`tf.layers.conv2d(x, 32, 3, padding="same")`',
            now='`keras.layers.Conv2D(32, 3, padding="same")(x)`',
        ),
        Row(
            {
                **_POOLS,
                "tf.layers.flatten": "`keras.layers.Flatten`",
            },
            before="`tf.layers.max_pooling2d(x, 2, 2)`, `tf.layers.flatten(x)`",
            now="`keras.layers.MaxPooling2D(2, 2)(x)`, "
            "`keras.layers.Flatten()(x)`",
        ),
        Row(
            {"tf.layers.dropout": "`keras.layers.Dropout`"},
            before="`tf.layers.dropout(x, 0.1, training=t)`",
            now="`keras.layers.Dropout(0.1)(x, training=t)`",
        ),
        Row(
            {"tf.nn.dropout": "`keras.layers.Dropout`"},
            before="`tf.nn.dropout(x, keep_prob=0.9)`",
            now="`keras.layers.Dropout(0.1)(x, training=t)`",
        ),
        Row(
            {
                "tf.layers.batch_normalization": "`keras.layers."
                "BatchNormalization`",
                "tf.layers.BatchNormalization": "`keras.layers."
                "BatchNormalization`",
                "tf.contrib.layers.batch_norm": "`keras.layers."
                "BatchNormalization`",
            },
            before="`tf.layers.batch_normalization(x, training=t)`",
            now="`keras.layers.BatchNormalization()(x, training=t)`",
            note="no `UPDATE_OPS`; `tf.contrib.layers` has other defaults",
        ),
        Row(
            {
                "tf.contrib.layers.layer_norm": "`keras.layers."
                "LayerNormalization`"
            },
            before="`tf.contrib.layers.layer_norm(x, begin_norm_axis=-1)`",
            now="`keras.layers.LayerNormalization(epsilon=1e-12)(x)`",
        ),
        Row(
            {
                "tf.contrib.layers.fully_connected": "`keras.layers.Dense`",
                "tf.contrib.layers.linear": "`keras.layers.Dense`",
                "tf.contrib.layers.conv2d": "`keras.layers.Conv2D`",
                "tf.contrib.layers.flatten": "`keras.layers.Flatten`",
                "tf.contrib.layers.dropout": "`keras.layers.Dropout`",
                "tf.contrib.slim.fully_connected": "`keras.layers.Dense`",
                "tf.contrib.slim.conv2d": "`keras.layers.Conv2D`",
            },
            before="`tf.contrib.layers.fully_connected(x, 10)`, "
            "`slim.conv2d`, ...",
            now='`keras.layers.Dense(10, activation="relu")(x)`, '
            "`keras.layers.Conv2D`, ...",
            note="`relu` was their default",
        ),
        Row(
            {
                "tf.contrib.slim.*": "`keras.layers`",
                "tf.contrib.layers.*": "`keras.layers`",
                "tf.contrib.framework.arg_scope": "`functools.partial`",
                "tf.contrib.slim.arg_scope": "`functools.partial`",
            },
            before="`slim.arg_scope`",
            now="`functools.partial` of a layer's class",
        ),
        Row(
            {
                "tf.contrib.layers.xavier_initializer": "`keras.initializers."
                "GlorotUniform`",
                "tf.glorot_uniform_initializer": "`keras.initializers."
                "GlorotUniform`",
                "tf.truncated_normal_initializer": "`keras.initializers."
                "TruncatedNormal`",
                "tf.random_normal_initializer": "`keras.initializers."
                "RandomNormal`",
                "tf.random_uniform_initializer": "`keras.initializers."
                "RandomUniform`",
                "tf.variance_scaling_initializer": "`keras.initializers."
                "VarianceScaling`",
                "tf.contrib.layers.variance_scaling_initializer": "`keras."
                "initializers.VarianceScaling`",
                "tf.initializers.*": "`keras.initializers`",
                "tf.zeros_initializer": "`keras.initializers.Zeros`",
                "tf.ones_initializer": "`keras.initializers.Ones`",
                "tf.constant_initializer": "`keras.initializers.Constant`",
                "tf.orthogonal_initializer": "`keras.initializers.Orthogonal`",
            },
            before="`tf.truncated_normal_initializer(stddev=0.02)`, ...",
            now="`keras.initializers.TruncatedNormal(stddev=0.02)`, ...",
            note="the default of both is Glorot's uniform one",
        ),
        Row(
            {
                "tf.contrib.layers.l2_regularizer": "`keras.regularizers.L2`",
                "tf.contrib.layers.l1_regularizer": "`keras.regularizers.L1`",
            },
            before="`tf.contrib.layers.l2_regularizer(scale)`",
            now="`keras.regularizers.L2(scale / 2)`",
            note="[add its losses](model_fn.md#variables)",
        ),
        Row(
            {
                "tf.nn.rnn_cell.BasicLSTMCell": "`keras.layers.LSTMCell`",
                "tf.nn.rnn_cell.LSTMCell": "`keras.layers.LSTMCell`",
                "tf.nn.rnn_cell.GRUCell": "`keras.layers.GRUCell`",
                "tf.nn.rnn_cell.MultiRNNCell": "`keras.layers.StackedRNNCells`",
                "tf.nn.dynamic_rnn": "`keras.layers.RNN`",
                "tf.nn.bidirectional_dynamic_rnn": "`keras.layers."
                "Bidirectional`",
                "tf.nn.rnn_cell.*": "`keras.layers.RNN`",
                "tf.contrib.rnn.*": "`keras.layers.RNN`",
            },
            before="`tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(64), x)`",
            now="`keras.layers.LSTM(64, return_sequences=True)(x)`",
            note="your own cell goes into `keras.layers.RNN`",
        ),
        Row(
            {
                "tf.feature_column.embedding_column": "`keras.layers."
                "Embedding`",
                "tf.feature_column.input_layer": "`keras.layers.Concatenate`",
                "tf.feature_column.*": "`keras.layers.Embedding`",
            },
            before="`tf.feature_column.embedding_column`, `input_layer`",
            now="`keras.layers.Embedding`, `keras.layers.Concatenate`",
            note="strings become numbers in `input_fn`",
        ),
        Row(
            {
                "tf.layers.*": "`keras.layers`",
                "tf.keras.layers.*": "`keras.layers`",
                "tf.keras.*": "`keras`",
            },
            before="other layers of `tf.layers` and `tf.keras`",
            now="`keras.layers`",
        ),
    ),
)

VARIABLES = Section(
    "3-variables-and-scopes",
    (
        Row(
            {
                "tf.get_variable": "`keras.Variable`",
                "tf.Variable": "`keras.Variable`",
                "tf.contrib.framework.model_variable": "`keras.Variable`",
            },
            before='`tf.get_variable("w", [3, 4])`, `tf.Variable(...)`',
            now='`keras.Variable("glorot_uniform", (3, 4), name="w")`',
            note="with `trainable=False` where it was so",
        ),
        Row(
            {
                "tf.variable_scope": "`kte.variable_scope`",
                "tf.get_variable_scope": "`kte.variable_scope`",
            },
            before='`with tf.variable_scope("encoder/layer"):`',
            now='`with kte.variable_scope("encoder/layer"):`',
        ),
        Row(
            {"tf.AUTO_REUSE": "`kte.AUTO_REUSE`"},
            before='`tf.variable_scope("net", reuse=tf.AUTO_REUSE)`',
            now='`kte.variable_scope("net", reuse=kte.AUTO_REUSE)`',
            note="or a layer that is [created once and called twice]"
            "(model_fn.md#variables)",
        ),
        Row(
            {"tf.name_scope": "`keras.name_scope`"},
            note="the paths of all variables begin with it",
        ),
        Row(
            {"tf.trainable_variables": "`kte.trainable_variables`"},
            before='`tf.trainable_variables()`, `variable.name` (`"w:0"`)',
            now='`kte.trainable_variables()`, `variable.path` (`"w"`)',
        ),
        Row(
            {"tf.global_variables": "`kte.global_variables`"},
            note="without those of the optimizer",
        ),
        Row(
            {
                "tf.assign": "`keras.Variable.assign`",
                "tf.assign_add": "`keras.Variable.assign_add`",
                "tf.assign_sub": "`keras.Variable.assign_sub`",
            },
            before="`tf.assign(variable, value)`, in `train_op` or run",
            now="`variable.assign(value)`",
            note="it takes effect where it stands",
        ),
        Row(
            {
                "tf.train.get_global_step": "`kte.get_global_step`",
                "tf.train.get_or_create_global_step": "`kte.get_global_step`",
                "tf.train.create_global_step": "`kte.get_global_step`",
                "tf.contrib.framework.get_or_create_global_step": "`kte."
                "get_global_step`",
            },
            before="`tf.train.get_global_step()`, "
            "`tf.train.get_or_create_global_step()`",
            now="`kte.get_global_step()`",
            note="it counts by itself",
        ),
        Row(
            {
                "tf.get_collection": "nothing",
                "tf.add_to_collection": "nothing",
                "tf.GraphKeys": "nothing",
                "tf.losses.get_regularization_loss": "`keras.layers.Layer."
                "losses`",
                "tf.losses.get_regularization_losses": "`keras.layers.Layer."
                "losses`",
                "tf.losses.get_total_loss": "`keras.layers.Layer.losses`",
            },
            before="`tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)`, "
            "`tf.losses.get_regularization_loss()`",
            now="`layer.losses`, or "
            "[a sum over the variables](model_fn.md#variables)",
        ),
        Row(
            {
                "tf.fixed_size_partitioner": "nothing",
                "tf.min_max_variable_partitioner": "nothing",
                "tf.variable_axis_size_partitioner": "nothing",
            },
            before="partitioners",
            now="nothing: variables are replicated, or sharded by "
            "[`layout_map`](large_models.md)",
        ),
    ),
)
