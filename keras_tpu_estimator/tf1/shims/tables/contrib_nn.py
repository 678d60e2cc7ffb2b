"""Names of `tf.contrib` for networks: cells, optimizers, sequences."""

from keras_tpu_estimator.tf1.shims.tables.area import Area
from keras_tpu_estimator.tf1.shims.tables.area import missing
from keras_tpu_estimator.tf1.shims.tables.area import same

_WRITTEN = "keras_tpu_estimator.tf1.reimplemented."
_SERVERS = "There are no parameter servers. Leave it out."

OPT = Area(
    "contrib.opt",
    {
        **same(
            "AdaMaxOptimizer LARSOptimizer LazyAdamOptimizer NadamOptimizer",
            f"{_WRITTEN}opt:",
        ),
        **same(
            "AdamWOptimizer MomentumWOptimizer "
            "extend_with_decoupled_weight_decay",
            f"{_WRITTEN}weight_decay:",
        ),
        "MovingAverageOptimizer": (
            f"{_WRITTEN}moving_average:MovingAverageOptimizer"
        ),
        **{
            f"python.training.{name}": "tf.contrib.opt"
            for name in (
                "lars_optimizer",
                "lazy_adam_optimizer",
                "moving_average_optimizer",
                "nadam_optimizer",
                "weight_decay_optimizers",
            )
        },
    },
    {
        **missing(
            "AGNCustomGetter AGNOptimizer DropStaleGradientOptimizer "
            "ElasticAverageCustomGetter ElasticAverageOptimizer "
            "ModelAverageCustomGetter ModelAverageOptimizer",
            _SERVERS,
        ),
        **missing(
            "AdamGSOptimizer AddSignOptimizer ExternalOptimizerInterface "
            "GGTOptimizer PowerSignOptimizer ScipyOptimizerInterface "
            "ShampooOptimizer",
            "Use tf.train.AdamOptimizer.",
        ),
        "LazyAdamGSOptimizer": "Use tf.contrib.opt.LazyAdamOptimizer.",
        "MultitaskOptimizerWrapper": (
            "Use one optimizer for each task, in one train_op."
        ),
        "RegAdagradOptimizer": "Use tf.train.AdagradOptimizer.",
        "VariableClippingOptimizer": (
            "Use tf.clip_by_norm on the variables after the step."
        ),
    },
)
RNN = Area(
    "contrib.rnn",
    {
        **same(
            "BasicLSTMCell BasicRNNCell DeviceWrapper DropoutWrapper GRUCell "
            "LSTMCell LSTMStateTuple MultiRNNCell RNNCell ResidualWrapper",
            "tf.nn.rnn_cell.",
        ),
        **same(
            "static_bidirectional_rnn static_rnn static_state_saving_rnn",
            "tf.nn.",
        ),
        **same(
            "LSTMBlockCell LSTMBlockFusedCell LayerNormBasicLSTMCell "
            "stack_bidirectional_dynamic_rnn transpose_batch_time",
            f"{_WRITTEN}rnn:",
        ),
    },
    missing(
        "AttentionCellWrapper BidirectionalGridLSTMCell CompiledWrapper "
        "Conv1DLSTMCell Conv2DLSTMCell Conv3DLSTMCell ConvLSTMCell "
        "CoupledInputForgetGateLSTMCell EmbeddingWrapper FusedRNNCell "
        "FusedRNNCellAdaptor GLSTMCell GRUBlockCell GRUBlockCellV2 "
        "GridLSTMCell HighwayWrapper IndRNNCell IndyGRUCell IndyLSTMCell "
        "InputProjectionWrapper IntersectionRNNCell LayerNormLSTMCell "
        "LayerRNNCell NASCell OutputProjectionWrapper PhasedLSTMCell SRUCell "
        "TimeFreqLSTMCell TimeReversedFusedRNN UGRNNCell WeightNormLSTMCell",
        "Write it as a subclass of tf.nn.rnn_cell.RNNCell, or use "
        "tf.nn.rnn_cell.LSTMCell or GRUCell.",
    ),
)
SEQ2SEQ = Area(
    "contrib.seq2seq",
    {"sequence_loss": f"{_WRITTEN}seq2seq:sequence_loss"},
    advice=(
        "Decoders and attention are in no package that fits this TensorFlow. "
        "Write the loop with tf.while_loop, whose steps the device runs."
    ),
)
CRF = Area(
    "contrib.crf",
    {
        **same(
            "crf_binary_score crf_decode crf_log_likelihood crf_log_norm "
            "crf_sequence_score crf_unary_score viterbi_decode",
            f"{_WRITTEN}crf:",
        ),
    },
    {
        "CrfDecodeForwardRnnCell": "Use tf.contrib.crf.crf_decode.",
        "CrfForwardRnnCell": "Use tf.contrib.crf.crf_log_norm.",
        "crf_multitag_sequence_score": "Use crf_sequence_score.",
        "crf_constrained_decode": "Mask the potentials, and use crf_decode.",
    },
)
NN = Area(
    "contrib.nn",
    advice="Use the function of tf.nn that is named alike.",
)
