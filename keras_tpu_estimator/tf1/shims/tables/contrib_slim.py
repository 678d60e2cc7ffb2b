"""Names of `tf.contrib` that became tf_slim: layers, losses, metrics."""

from keras_tpu_estimator.tf1.shims.tables.area import Area
from keras_tpu_estimator.tf1.shims.tables.area import missing
from keras_tpu_estimator.tf1.shims.tables.area import same

_COLUMN = (
    "Use the column of tf.feature_column that is named alike, and "
    "tf.feature_column.input_layer."
)
_NETS = (
    "alexnet inception inception_v1 inception_v2 inception_v3 overfeat "
    "resnet_utils resnet_v1 resnet_v2 vgg"
)
_SUMMARIES = (
    "summarize_activation summarize_activations summarize_collection "
    "summarize_tensor summarize_tensors"
)

SLIM = Area(
    "contrib.slim",
    {
        **{f"nets.{net}": f"tf_slim.nets.{net}" for net in _NETS.split()},
        **{
            f"python.slim.nets.{net}": f"tf_slim.nets.{net}"
            for net in _NETS.split()
        },
        **{
            f"python.slim.{name}": f"tf_slim.{name}"
            for name in (
                "evaluation learning model_analyzer queues summaries"
            ).split()
        },
        **{
            f"python.slim.data.{name}": f"tf_slim.data.{name}"
            for name in (
                "data_decoder data_provider dataset dataset_data_provider "
                "parallel_reader prefetch_queue tfexample_decoder"
            ).split()
        },
    },
    rest="tf_slim",
)
LAYERS = Area(
    "contrib.layers",
    {
        **same(
            "bow_encoder embed_sequence embedding_lookup_unique",
            "keras_tpu_estimator.tf1.reimplemented.layers:",
        ),
        **same(_SUMMARIES, "tf_slim.layers:"),
        # `from tensorflow.contrib.layers.python.layers import layers`.
        "python.layers.initializers": "tf_slim.layers.initializers",
        "python.layers.layers": "tf_slim.layers.layers",
        "python.layers.normalization": "tf_slim.layers.normalization",
        "python.layers.optimizers": "tf_slim.layers.optimizers",
        "python.layers.regularizers": "tf_slim.layers.regularizers",
        "python.layers.rev_block_lib": "tf_slim.layers.rev_block_lib",
        "python.layers.summaries": "tf_slim.layers.summaries",
        "python.layers.utils": "tf_slim.layers.utils",
        "python.ops.sparse_ops": "tf_slim.layers.sparse_ops",
    },
    missing(
        "bucketized_column create_feature_spec_for_parsing crossed_column "
        "embedding_column input_from_feature_columns "
        "joint_weighted_sum_from_feature_columns multi_class_target "
        "one_hot_column parse_feature_columns_from_examples "
        "real_valued_column regression_target scattered_embedding_column "
        "sequence_input_from_feature_columns shared_embedding_columns "
        "sparse_column_with_hash_bucket sparse_column_with_integerized_feature "
        "sparse_column_with_keys sparse_column_with_vocabulary_file "
        "weighted_sparse_column weighted_sum_from_feature_columns",
        _COLUMN,
    ),
    rest="tf_slim.layers",
)
LOSSES = Area(
    "contrib.losses",
    {
        **same(
            "cluster_loss contrastive_loss lifted_struct_loss npairs_loss "
            "npairs_loss_multilabel triplet_semihard_loss",
            "tf_slim.losses.metric_learning:",
        ),
        **{
            f"metric_learning.{name}": f"tf_slim.losses.metric_learning:{name}"
            for name in (
                "cluster_loss contrastive_loss lifted_struct_loss "
                "npairs_loss npairs_loss_multilabel triplet_semihard_loss"
            ).split()
        },
        "python.losses.loss_ops": "tf_slim.losses.loss_ops",
        "python.metric_learning.metric_loss_ops": (
            "tf_slim.losses.metric_learning"
        ),
    },
    rest="tf_slim.losses",
)
METRICS = Area(
    "contrib.metrics",
    {
        "confusion_matrix": "tf.confusion_matrix",
        "python.metrics.classification": "tf_slim.metrics.classification",
        "python.ops.histogram_ops": "tf_slim.metrics.histogram_ops",
        "python.ops.metric_ops": "tf_slim.metrics.metric_ops",
        "set_difference": "tf.sets.difference",
        "set_intersection": "tf.sets.intersection",
        "set_size": "tf.sets.size",
        "set_union": "tf.sets.union",
    },
    rest="tf_slim.metrics",
)
FRAMEWORK = Area(
    "contrib.framework",
    {
        **same(
            "add_arg_scope arg_scope arg_scope_func_key arg_scoped_arguments "
            "current_arg_scope has_arg_scope",
            "tf_slim.ops.arg_scope:",
        ),
        **same(
            "add_model_variable assert_global_step assert_or_get_global_step "
            "assign_from_checkpoint assign_from_checkpoint_fn "
            "assign_from_values assign_from_values_fn create_global_step "
            "filter_variables get_global_step get_local_variables "
            "get_model_variables get_or_create_global_step "
            "get_trainable_variables get_unique_variable "
            "get_variable_full_name get_variables get_variables_by_name "
            "get_variables_by_suffix get_variables_to_restore "
            "global_variable local_variable model_variable variable "
            "VariableDeviceChooser",
            "tf_slim.ops.variables:",
        ),
        **same(
            "init_from_checkpoint list_variables load_checkpoint "
            "load_variable checkpoints_iterator",
            "tf.train.",
        ),
        **same("argsort is_tensor sort", "tf."),
        "assert_same_float_dtype": "tf.debugging.assert_same_float_dtype",
        "assert_scalar": "tf.debugging.assert_scalar",
        "broadcast_to": "tf.broadcast_to",
        "nest": "tf.nest",
        "python.framework.checkpoint_utils": "tf.train",
        "python.ops.add_arg_scope": "tf_slim.ops.arg_scope:add_arg_scope",
        "python.ops.arg_scope": "tf_slim.ops.arg_scope:arg_scope",
        "python.ops.ops": "tf_slim.ops.framework_ops",
        "python.ops.variables": "tf_slim.ops.variables",
        "smart_cond": (
            "keras_tpu_estimator.tf1.reimplemented.framework:smart_cond"
        ),
        "smart_constant_value": "tf.get_static_value",
    },
    {
        "fuse_op": "XLA fuses the operations of a step by itself.",
        "zero_initializer": "Use tf.zeros_initializer.",
    },
    modules={"python.ops.arg_scope": "tf_slim.ops.arg_scope"},
)
TRAINING = Area(
    "contrib.training",
    {
        **same(
            "HParams parse_values",
            "keras_tpu_estimator.tf1.reimplemented.hparam:",
        ),
        "python.training.hparam": (
            "keras_tpu_estimator.tf1.reimplemented.hparam"
        ),
        "python.training.evaluation": "tf_slim.training.evaluation",
        "python.training.training": "tf_slim.training.training",
        **same(
            "StopAfterNEvalsHook SummaryAtEndHook checkpoints_iterator "
            "evaluate_once evaluate_repeatedly get_or_create_eval_step "
            "wait_for_new_checkpoint",
            "tf_slim.training.evaluation:",
        ),
        **same(
            "add_gradients_summaries clip_gradient_norms "
            "clip_gradient_norms_fn create_train_op multiply_gradients train",
            "tf_slim.training.training:",
        ),
    },
    {
        **missing(
            "batch_sequences_with_states bucket bucket_by_sequence_length "
            "rejection_sample resample_at_rate stratified_sample "
            "weighted_resample NextQueuedSequenceBatch "
            "SequenceQueueingStateSaver prepare_feature_columns_for_rnn",
            "It fed queues. Read the input with tf.data: "
            "tf.data.experimental has bucket_by_sequence_length and "
            "rejection_resample.",
        ),
        **missing(
            "GreedyLoadBalancingStrategy RandomStrategy byte_size_load_fn",
            "There are no parameter servers. Leave it out.",
        ),
    },
)
