"""Names of `tf.estimator`, which TensorFlow 2.16 removed."""

from keras_tpu_estimator.tf1.shims.tables.area import Area
from keras_tpu_estimator.tf1.shims.tables.area import missing
from keras_tpu_estimator.tf1.shims.tables.area import same

_CANNED = (
    "It needs a `model_fn`: write the few layers of this one as yours, and "
    "give it to tf.estimator.Estimator."
)
_HOOKS = (
    "CheckpointSaverHook CheckpointSaverListener FeedFnHook FinalOpsHook "
    "GlobalStepWaiterHook LoggingTensorHook NanLossDuringTrainingError "
    "NanTensorHook ProfilerHook SecondOrStepTimer SessionRunArgs "
    "SessionRunContext SessionRunHook SessionRunValues StepCounterHook "
    "StopAtStepHook SummarySaverHook"
)

ESTIMATOR = Area(
    "estimator",
    {
        **same(
            "BestExporter EvalSpec Exporter FinalExporter LatestExporter "
            "ModeKeys TrainSpec VocabInfo WarmStartSettings train_and_evaluate",
            "keras_tpu_estimator:",
        ),
        **same(
            "Estimator RunConfig", "keras_tpu_estimator.tf1_tools.tf_estimator:"
        ),
        "EstimatorSpec": "keras_tpu_estimator.tf1:EstimatorSpec",
        # Private, and in every other program of the time.
        "_load_global_step_from_checkpoint_dir": (
            "keras_tpu_estimator.tf1.reimplemented.estimator:global_step_of"
        ),
        # Moved to tf.estimator in TensorFlow 2, and still where they were.
        **same(_HOOKS, "tf.train."),
        **same(
            "ClassificationOutput ExportOutput PredictOutput RegressionOutput "
            "ServingInputReceiver TensorServingInputReceiver "
            "build_parsing_serving_input_receiver_fn "
            "build_raw_serving_input_receiver_fn",
            "keras_tpu_estimator.export:",
        ),
    },
    {
        **missing(
            "BaselineClassifier BaselineEstimator BaselineRegressor "
            "BoostedTreesClassifier BoostedTreesEstimator "
            "BoostedTreesRegressor DNNClassifier DNNEstimator "
            "DNNLinearCombinedClassifier DNNLinearCombinedEstimator "
            "DNNLinearCombinedRegressor DNNRegressor LinearClassifier "
            "LinearEstimator LinearRegressor",
            _CANNED,
        ),
        "add_metrics": "Add them to `eval_metric_ops` in `model_fn`.",
        "classifier_parse_example_spec": (
            "Use tf.feature_column.make_parse_example_spec."
        ),
        "regressor_parse_example_spec": (
            "Use tf.feature_column.make_parse_example_spec."
        ),
        **missing(
            "BinaryClassHead Head LogisticRegressionHead MultiClassHead "
            "MultiHead MultiLabelHead PoissonRegressionHead RegressionHead",
            "Return an EstimatorSpec with the loss and metrics of your own.",
        ),
    },
)
EXPORT = Area(
    "estimator.export",
    same(
        "ClassificationOutput ExportOutput PredictOutput RegressionOutput "
        "ServingInputReceiver SupervisedInputReceiver "
        "TensorServingInputReceiver build_parsing_serving_input_receiver_fn "
        "build_raw_serving_input_receiver_fn "
        "build_raw_supervised_input_receiver_fn "
        "build_supervised_input_receiver_fn_from_input_fn",
        "keras_tpu_estimator.export:",
    ),
    {"EvalOutput": "Return eval_metrics; evaluation makes its own output."},
)
INPUTS = Area(
    "estimator.inputs",
    same(
        "numpy_input_fn pandas_input_fn",
        "keras_tpu_estimator.tf1.reimplemented.inputs:",
    ),
)
EXPERIMENTAL = Area(
    "estimator.experimental",
    same(
        "InMemoryEvaluatorHook make_early_stopping_hook "
        "make_stop_at_checkpoint_step_hook read_eval_metrics "
        "stop_if_higher_hook stop_if_lower_hook stop_if_no_decrease_hook "
        "stop_if_no_increase_hook",
        "keras_tpu_estimator.workflow.experimental:",
    ),
    {
        **missing(
            "KMeans LinearSDCA RNNClassifier RNNEstimator",
            _CANNED,
        ),
        **missing(
            "build_raw_supervised_input_receiver_fn",
            "Use tf.estimator.export.build_raw_supervised_input_receiver_fn.",
        ),
        "call_logit_fn": "Call the function itself.",
    },
)
TPU = Area(
    "estimator.tpu",
    {
        **same(
            "RunConfig TPUConfig TPUEstimator",
            "keras_tpu_estimator.tf1_tools.tf_estimator.tpu:",
        ),
        "InputPipelineConfig": "keras_tpu_estimator:InputPipelineConfig",
        "TPUEstimatorSpec": "keras_tpu_estimator.tf1:TPUEstimatorSpec",
    },
    {
        "experimental.EmbeddingConfigSpec": (
            "Tables are no special case here: make the columns with "
            "tf.feature_column.embedding_column, and call "
            "tf.feature_column.input_layer in `model_fn`."
        ),
    },
)
