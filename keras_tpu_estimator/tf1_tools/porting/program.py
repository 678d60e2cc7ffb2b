"""Counterparts of estimators, settings, and what is around a program."""

from keras_tpu_estimator.tf1_tools.porting.records import Row
from keras_tpu_estimator.tf1_tools.porting.records import Section
from keras_tpu_estimator.tf1_tools.porting.records import same

PROGRAM = Section(
    "1-imports-and-settings",
    (
        Row(
            {
                "tf.estimator.tpu.TPUEstimator": "`kte.TPUEstimator`",
                "tf.contrib.tpu.TPUEstimator": "`kte.TPUEstimator`",
            }
        ),
        same(
            "tf.estimator.tpu",
            "kte",
            "TPUEstimatorSpec RunConfig TPUConfig InputPipelineConfig",
            note="`num_shards` is the number of cores that are there, or "
            "`None`",
            before="`TPUEstimatorSpec`, `RunConfig`, `TPUConfig`, "
            "`InputPipelineConfig`",
        ),
        same(
            "tf.estimator",
            "kte",
            "ModeKeys TrainSpec EvalSpec train_and_evaluate Exporter "
            "FinalExporter LatestExporter BestExporter WarmStartSettings "
            "VocabInfo RunConfig",
            before="`tf.estimator.ModeKeys`, `TrainSpec`, `EvalSpec`, "
            "`train_and_evaluate`, exporters, `WarmStartSettings`",
        ),
        Row(
            {"tf.estimator.Estimator": "`kte.TPUEstimator`"},
            now="`kte.TPUEstimator(..., use_tpu=False)`",
            note="`model_fn` takes `params`, and batch sizes are arguments",
        ),
        Row(
            {"tf.estimator.EstimatorSpec": "`kte.EstimatorSpec`"},
            note="on several cores `kte.TPUEstimatorSpec`, with "
            "`eval_metrics=(metric_fn, tensors)` for `eval_metric_ops`",
        ),
        Row(
            {"tf.contrib.gan.*": "two optimizers in one step"},
            before="`TPUGANEstimator`, `tf.contrib.gan`",
            now="[two optimizers in one step](model_fn.md#gradients)",
        ),
        Row(
            {
                "tf.estimator.export.*": "`kte.export`",
                "tf.saved_model.*": "`kte.export`",
            },
            before="`tf.estimator.export`",
            now="`kte.export`, for [SavedModels](export.md)",
        ),
        Row(
            {
                f"tf.{name}": f"`kte.experimental.{name.rpartition('.')[-1]}`"
                for name in (
                    "estimator.tpu.experimental.EmbeddingConfigSpec",
                    "tpu.experimental.AdagradParameters",
                    "tpu.experimental.AdamParameters",
                    "tpu.experimental.FtrlParameters",
                    "tpu.experimental.StochasticGradientDescentParameters",
                )
            },
            before="`EmbeddingConfigSpec`, `TableConfig`, `AdagradParameters`",
            now="the same in `kte.experimental`; see [tables](embeddings.md)",
        ),
        Row(
            {"tf.estimator.experimental.*": "`kte.experimental`"},
            before="`tf.estimator.experimental`",
            note="early stopping, `InMemoryEvaluatorHook`",
        ),
        Row(
            {"tf.keras.estimator.model_to_estimator": "`kte.from_keras`"},
            now="[`kte.from_keras`](model_fn.md#from-a-keras-model)",
        ),
        Row(
            {
                "tf.estimator.DNNClassifier": "a `model_fn` of `keras.layers`",
                "tf.estimator.DNNRegressor": "a `model_fn` of `keras.layers`",
                "tf.estimator.LinearClassifier": "a `model_fn` of "
                "`keras.layers`",
                "tf.estimator.LinearRegressor": "a `model_fn` of "
                "`keras.layers`",
            },
            before="`tf.estimator.DNNClassifier` and other ready-made ones",
            note="or a compiled model and "
            "[`kte.from_keras`](model_fn.md#from-a-keras-model)",
        ),
        Row(
            {
                "tf.estimator.inputs.*": "arrays or a generator",
                "tf.data.*": "the same",
                "tf.train.batch": "`tf.data.Dataset.batch`",
                "tf.train.shuffle_batch": "`tf.data.Dataset.shuffle`",
            },
            before="`tf.estimator.inputs.numpy_input_fn`, queues such as "
            "`tf.train.batch`",
            now="arrays, a generator or a `tf.data.Dataset`: see "
            "[input_fn](input_fn.md)",
        ),
        Row({"tf.contrib.data.*": "`tf.data.experimental`"}),
        Row(
            {
                "tf.data.make_one_shot_iterator": "the dataset",
                "tf.data.make_initializable_iterator": "the dataset",
            },
            before="`return dataset.make_one_shot_iterator().get_next()`",
            now="`return dataset`",
            note="without a graph `get_next()` is one batch, which is refused "
            "in training",
        ),
        Row(
            {
                "tf.contrib.cluster_resolver.*": "nothing",
                "tf.distribute.cluster_resolver.*": "nothing",
                "tf.ConfigProto": "nothing",
                "tf.GPUOptions": "nothing",
                "tf.GraphOptions": "nothing",
                "tf.OptimizerOptions": "nothing",
                "tf.device": "nothing",
            },
            before="`TPUClusterResolver`, `tf.ConfigProto`",
            now="nothing: the cores are those that JAX has; see "
            "[Several hosts](hosts.md)",
        ),
        Row(
            {
                "tf.contrib.tpu.bfloat16_scope": "`kte.RunConfig("
                'dtype_policy="mixed_bfloat16")`',
                "tf.tpu.bfloat16_scope": "`kte.RunConfig("
                'dtype_policy="mixed_bfloat16")`',
            },
            before="`with tf.contrib.tpu.bfloat16_scope():`",
            note="or `dtype=` of layers",
        ),
        Row(
            {"tf.logging.*": "`tf.compat.v1.logging`"},
            before="`tf.logging.set_verbosity(tf.logging.INFO)`",
            now="`tf.compat.v1.logging.set_verbosity("
            "tf.compat.v1.logging.INFO)`",
            note="or `logging.basicConfig(level=logging.INFO)`; with either, "
            "[the loss is logged](logs.md)",
        ),
        Row(
            {
                "tf.app.*": "`absl.app`",
                "tf.flags.*": "`absl.flags`",
                "tf.gfile.*": "`tf.io.gfile`",
                "tf.python_io.*": "`tf.io`",
            },
            before="`tf.app`, `tf.flags`, `tf.gfile`, `tf.python_io`",
            now="`absl.app`, `absl.flags`, `tf.io.gfile`, `tf.io`",
            note="or the same, by `import tensorflow.compat.v1 as tf`",
        ),
        Row(
            {
                f"tf.{name}": "the same, on the host"
                for name in "io.* errors.* test.* train.Example "
                "train.SequenceExample train.Feature train.Features "
                "train.FeatureList train.FeatureLists train.BytesList "
                "train.Int64List train.FloatList".split()
            },
            before="`tf.io`, `tf.errors`, `tf.test`, `tf.train.Example`",
        ),
        Row(
            {"tf.contrib.training.HParams": "a dict in `params`"},
        ),
        Row(
            {
                "tf.Session": "nothing",
                "tf.InteractiveSession": "nothing",
                "tf.placeholder": "an argument of a function",
                "tf.global_variables_initializer": "nothing",
                "tf.local_variables_initializer": "nothing",
                "tf.tables_initializer": "nothing",
                "tf.Graph": "nothing",
                "tf.disable_eager_execution": "nothing",
                "tf.disable_v2_behavior": "nothing",
                "tf.get_default_graph": "nothing",
                "tf.reset_default_graph": "nothing",
                "tf.contrib.tpu.initialize_system": "nothing",
                "tf.train.MonitoredTrainingSession": "`kte.TPUEstimator.train`",
            },
            before="`tf.Session`, `tf.placeholder`, `tf.Graph`, initializers "
            "to run",
            now="nothing: functions are traced, and called with arrays",
        ),
    ),
)

FILES = Section(
    "8-checkpoints",
    (
        same(
            "tf.train",
            "kte",
            "list_variables load_variable load_checkpoint latest_checkpoint "
            "checkpoints_iterator",
            note="they read [TensorFlow's](checkpoints.md#reading), too",
        ),
        Row(
            {
                "tf.train.NewCheckpointReader": "`kte.load_checkpoint`",
                "tf.contrib.framework.list_variables": "`kte.list_variables`",
                "tf.contrib.framework.load_variable": "`kte.load_variable`",
                "tf.contrib.framework.load_checkpoint": "`kte.load_checkpoint`",
            },
        ),
        Row(
            {
                "tf.train.init_from_checkpoint": "`kte.init_from_checkpoint`",
                "tf.contrib.framework.init_from_checkpoint": "`kte."
                "init_from_checkpoint`",
                "tf.contrib.framework.assign_from_checkpoint_fn": "`kte."
                "init_from_checkpoint`",
            },
            before='`tf.train.init_from_checkpoint(path, {"bert/": "bert/"})`',
            now='`kte.init_from_checkpoint(path, {"bert/": "bert/"})`',
            note="after the layers are called; names are those of "
            "`kte.list_variables(path)`, and a scope that matches nothing is "
            "an error",
        ),
        Row(
            {"tf.train.Scaffold": "`kte.Scaffold`"},
            note="with `init_fn` and `variables_to_restore` alone",
        ),
        Row(
            {
                "tf.GraphKeys.GLOBAL_STEP": '`"global_step"`',
                "tf.python.estimator.estimator."
                "_load_global_step_from_checkpoint_dir": "`kte.load_variable`",
            },
            before="`tf.GraphKeys.GLOBAL_STEP`, "
            "`estimator._load_global_step_from_checkpoint_dir(path)`",
            now='`"global_step"`, `kte.load_variable(path, "global_step")`',
            note="0 where `kte.latest_checkpoint(path)` is `None`",
        ),
        Row(
            {
                "tf.contrib.tpu.AsyncCheckpointSaverHook": "nothing",
                "tf.contrib.tpu.python.tpu.async_checkpoint.*": "nothing",
            },
            before="`AsyncCheckpointSaverHook`",
            now="nothing: all checkpoints are written in the background",
        ),
        Row(
            {"tf.train.Saver": "`kte.RunConfig`"},
            now="nothing: `RunConfig(save_checkpoints_steps=..., "
            "keep_checkpoint_max=...)`",
            note="to restore other names, `kte.Scaffold("
            "variables_to_restore=...)`",
        ),
        Row(
            {},
            before='`model_dir="gs://bucket/run"`',
            now="the same, with `pip install -e '.[remote]' gcsfs`: see "
            "[Stores behind URLs](checkpoints.md#stores-behind-urls)",
        ),
    ),
)
