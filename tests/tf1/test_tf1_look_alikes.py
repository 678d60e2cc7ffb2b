"""Tests names that TensorFlow no longer has."""

import keras_tpu_estimator as kte  # isort: skip

import importlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf
from tf1_programs import (
    BATCH,
    assert_same,
    batches,
    classes_data,
    fed,
    values_of,
    weights,
)

from keras_tpu_estimator.tf1.names.catalogue import catalogue
from keras_tpu_estimator.tf1.shims import Status, importing, lookup
from keras_tpu_estimator.tf1.shims.resolving import resolve
from keras_tpu_estimator.tf1_tools.tf_estimator import run_configs


@pytest.fixture(scope="module", autouse=True)
def installed():
    kte.tf1.install()


def test_module_lists_its_public_names():
    listed = dir(tf.contrib.opt)
    assert "LARSOptimizer" in listed and "python" in listed
    assert "conv2d" in dir(tf.contrib.slim)
    assert not any(name.startswith("_") for name in listed)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("tf.train.AdamOptimizer", Status.TENSORFLOW),
        ("tensorflow.compat.v1.train.AdamOptimizer", Status.TENSORFLOW),
        ("tensorflow.python.framework.ops", Status.TENSORFLOW),
        ("tensorflow.core.protobuf.config_pb2", Status.TENSORFLOW),
        ("tf.compat.v2.summary.scalar", Status.TENSORFLOW),
        ("tf.nn.relu", Status.TENSORFLOW),
        ("tf.flags.FLAGS.model_dir", Status.TENSORFLOW),
        ("tf.layers.dense", Status.SUPPLIED),
        ("tf.nn.rnn_cell.LSTMCell", Status.SUPPLIED),
        (
            "tf.estimator.experimental.build_raw_supervised_input_receiver_fn",
            Status.SUPPLIED,
        ),
        ("tf.estimator", Status.SUPPLIED),
        ("tf.compat.v1.estimator.ModeKeys.TRAIN", Status.SUPPLIED),
        ("tf.contrib.tpu.python.tpu.tpu_config.TPUConfig", Status.SUPPLIED),
        ("tf.contrib.tpu.rewrite", Status.MISSING),
        ("tf.contrib.no_such_area", Status.MISSING),
        ("tf.layers.no_such_layer", Status.MISSING),
    ],
)
def test_lookup_returns_the_status_of_a_name(name, status):
    assert lookup(name).status == status


def test_error_has_the_missing_name_and_the_line_that_uses_it():
    with pytest.raises(AttributeError) as caught:
        tf.contrib.tpu.rewrite  # noqa: B018
    message = str(caught.value)
    assert "`tf.contrib.tpu.rewrite`" in message
    assert f"Used in {__file__}, line" in message
    assert "Put the model into a `model_fn`." in message


def test_import_error_names_the_missing_name():
    with pytest.raises(ImportError, match="tpu.no_such_name.*Used in .*alikes"):
        from tensorflow.contrib.tpu import no_such_name  # noqa: F401
    with pytest.raises(ImportError, match="`tf.contrib.no_such_area`"):
        from tensorflow.contrib import no_such_area  # noqa: F401


def test_unused_modules_are_imported():
    from tensorflow.contrib import bigtable, model_pruning
    from tensorflow.contrib.learn.python.learn.datasets import mnist
    from tensorflow.examples.tutorials.mnist import input_data

    with pytest.raises(AttributeError, match=r"read_data_sets.*with NumPy\."):
        input_data.read_data_sets("data")
    for module in (bigtable, model_pruning, mnist):
        with pytest.raises(AttributeError, match="not supplied here"):
            module.anything()


def test_install_does_not_replace_existing_names():
    had = {name: getattr(tf2, name) for name in dir(tf2) if name != "keras"}
    modules = dict(sys.modules)
    finders = list(sys.meta_path)
    kte.tf1.install()
    assert {n: getattr(tf2, n) for n in had} == had
    assert sys.modules == modules
    assert sys.meta_path == finders
    assert tf.train.Saver is tf2.compat.v1.train.Saver


def test_modules_are_imported_by_their_names():
    import tensorflow.compat.v1.estimator as by_path
    import tensorflow.contrib.tpu as contrib_tpu
    from tensorflow.compat.v1 import estimator as by_name
    from tensorflow.contrib.tpu.python.tpu import tpu_config
    from tensorflow.python.tpu import tpu_estimator

    assert by_path is by_name is tf2.estimator
    assert contrib_tpu.TPUConfig is tpu_config.TPUConfig
    assert tpu_estimator.TPUEstimator is tf.estimator.tpu.TPUEstimator


# Imports of modules that were never public in TF1.
IMPORTS = """
from tensorflow.contrib.framework.python.ops import arg_scope
from tensorflow.contrib.framework.python.ops.arg_scope import arg_scope
import tensorflow.contrib.framework.python.ops.arg_scope
from tensorflow.contrib.framework.python.ops import arg_scope
assert callable(arg_scope)
from tensorflow.python.layers import core as layers_core
from tensorflow.python.layers import base, convolutional, pooling
layers_core.Dense, convolutional.Conv2D, pooling.MaxPooling2D, base.Layer
from tensorflow.python.layers.normalization import BatchNormalization
from tensorflow.python.ops.control_flow_ops import case, cond, while_loop
from tensorflow.python.framework import ops
ops.Tensor, ops.IndexedSlices, ops.Graph
from tensorflow.python.ops import array_ops, variable_scope, variables
array_ops.stack, variable_scope.variable, variables.VariableV1
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.compiler.tf2xla.python.xla import add
import tensorflow.compiler.tf2xla.python.xla
xla.add
from tensorflow.python.tools import freeze_graph
from tensorflow.python.training import distribution_strategy_context, training_ops
distribution_strategy_context.get_strategy
from tensorflow.python.training.saving import functional_saver
functional_saver.MultiDeviceSaver
from tensorflow.python.training.tracking import base, data_structures, graph_view
base.Trackable, data_structures.wrap_or_unwrap, graph_view.ObjectGraphView
from tensorflow.python.training.tracking import layer_utils, python_state
python_state.PythonState, layer_utils.filter_empty_layer_containers
from tensorflow.python.training.tracking import tracking, util
tracking.AutoTrackable, tracking.TrackableAsset, tracking.TrackableResource
util.Checkpoint, util.CheckpointV1
from tensorflow.python.util import nest
nest.is_sequence
"""


def test_private_modules_are_imported_as_in_python():
    # Separate lines, so that an error names its line.
    for builtins in (vars(importing.builtins), importing.BUILTINS):
        names = {"__builtins__": builtins, "__name__": "program"}
        for line in IMPORTS.strip().splitlines():
            exec(line, names)  # noqa: S102


def test_private_paths_of_datasets_lead_to_those_of_tf1():
    program = """
from tensorflow import data
from tensorflow.python.data import Dataset
from tensorflow.python.data.ops import dataset_ops, readers
assert Dataset is dataset_ops.Dataset is data.Dataset
assert readers.TFRecordDataset is data.TFRecordDataset
with dataset_ops.ops.Graph().as_default():
    rows = dataset_ops.Dataset.range(3).make_one_shot_iterator().get_next()
assert rows.shape == ()
"""
    exec(program, {"__builtins__": importing.BUILTINS})  # noqa: S102


def test_removed_names_of_tensorflow_are_restored_once():
    from tensorflow.python.ops import control_flow_ops

    cond = control_flow_ops.cond
    assert cond is tf.cond
    finders = list(sys.meta_path)
    kte.tf1.install()
    assert control_flow_ops.cond is cond
    assert sys.meta_path == finders
    entries = catalogue().entries.values()
    # TensorFlow has these names, and only scripts get others.
    replaced = {"python.tf2", "python.lib.io.file_io"}
    lost = [
        each
        for each in entries
        if each.owner.startswith("python.") and each.owner not in replaced
    ]
    assert "control_flow_ops" in {each.owner.split(".")[-1] for each in lost}
    for each in lost:
        module = importlib.import_module(f"tensorflow.{each.owner}")
        assert getattr(module, each.name) is resolve(each.path)


def test_error_without_the_extra_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tf_slim", None)
    with pytest.raises(ImportError, match=r"tf_slim, .*\[tf1\]"):
        resolve.__wrapped__("contrib.slim.queues")  # The previous state is restored.


def model_fn(features, labels, mode, params):
    """A network of tf.layers in the style of 2018."""
    training = mode == tf.estimator.ModeKeys.TRAIN
    net = tf.layers.dense(
        features, 6, tf.nn.relu, kernel_initializer=weights(5, 6, seed=1)
    )
    net = tf.layers.batch_normalization(net, training=training)
    logits = tf.layers.dense(net, 4, kernel_initializer=weights(6, 4, seed=2))
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.tpu.TPUEstimatorSpec(mode, predictions={"logits": logits})
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    optimizer = tf.contrib.tpu.CrossShardOptimizer(tf.train.MomentumOptimizer(0.1, 0.9))
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def reference(data):
    """The variables of the same network after training in plain sessions."""
    graph = tf.Graph()
    with graph.as_default():
        tf.train.create_global_step()
        x, y = (tf.placeholder(a.dtype, a.shape) for a in data[0])
        kernel = tf.get_variable(
            "dense/kernel", [5, 6], initializer=weights(5, 6, seed=1)
        )
        bias = tf.get_variable("dense/bias", [6], initializer=tf.zeros_initializer())
        net = tf.nn.relu(x @ kernel + bias)
        gamma, beta = (
            tf.get_variable(
                f"batch_normalization/{n}",
                [6],
                initializer=tf.constant_initializer(v),
            )
            for n, v in (("gamma", 1.0), ("beta", 0.0))
        )
        moving = [
            tf.get_variable(
                f"batch_normalization/moving_{n}",
                [6],
                trainable=False,
                initializer=tf.constant_initializer(v),
            )
            for n, v in (("mean", 0.0), ("variance", 1.0))
        ]
        moments = tf.nn.moments(net, [0])
        updates = [
            tf.assign_sub(m, (m - new) * 0.01)
            for m, new in zip(moving, moments, strict=True)
        ]
        net = tf.nn.batch_normalization(net, *moments, beta, gamma, 1e-3)
        kernel = tf.get_variable(
            "dense_1/kernel", [6, 4], initializer=weights(6, 4, seed=2)
        )
        bias = tf.get_variable("dense_1/bias", [4], initializer=tf.zeros_initializer())
        loss = tf.losses.sparse_softmax_cross_entropy(y, net @ kernel + bias)
        with tf.control_dependencies(updates):
            train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(
                loss, tf.train.get_global_step()
            )
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for arrays in data:
                session.run(train_op, {x: arrays[0], y: arrays[1]})
            return session.run({v.op.name: v for v in tf.global_variables()})


def test_network_of_layers_has_names_of_tf1(tmp_path):
    data = batches(*classes_data(5))
    estimator = tf.contrib.tpu.TPUEstimator(
        model_fn,
        config=tf.contrib.tpu.RunConfig(
            cluster=tf.contrib.cluster_resolver.TPUClusterResolver("name"),
            model_dir=str(tmp_path),
            session_config=tf.ConfigProto(allow_soft_placement=True),
            tpu_config=tf.contrib.tpu.TPUConfig(
                iterations_per_loop=4,
                num_shards=32,
                per_host_input_for_training=(
                    tf.contrib.tpu.InputPipelineConfig.PER_HOST_V2
                ),
            ),
        ),
        use_tpu=False,
        train_batch_size=BATCH,
    )
    estimator.train(fed(data), steps=len(data))
    assert_same(values_of(estimator), reference(data), atol=1e-5)


def estimator_model_fn(features, labels, mode, params, config):
    """A model_fn for `tf.estimator.Estimator`, with its own names and metrics."""
    logits = tf.layers.dense(features["x"], params.batch_size)
    classes = tf.argmax(logits, axis=1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=classes)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    train_op = tf.train.AdamOptimizer(params.rate).minimize(
        loss, tf.train.get_or_create_global_step()
    )
    hook = tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=10)
    return tf.estimator.EstimatorSpec(
        mode,
        predictions={"class": classes},
        loss=loss,
        train_op=train_op,
        eval_metric_ops={"accuracy": tf.metrics.accuracy(labels, classes)},
        training_hooks=[hook],
    )


def test_estimator_validates_with_input_without_arguments(tmp_path):
    x, y = classes_data(5)
    params = tf.contrib.training.HParams(batch_size=4, rate=0.1)
    estimator = tf.estimator.Estimator(estimator_model_fn, str(tmp_path), params=params)
    input_fn = tf.estimator.inputs.numpy_input_fn(
        {"x": x}, y, batch_size=16, num_epochs=None, shuffle=False
    )
    logs = []
    callback = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logged: logs.append(logged)
    )
    estimator.train(
        input_fn,
        [callback],
        steps=2,
        validation=input_fn,
        validation_steps=1,
    )
    assert "val_loss" in logs[-1]


def test_estimator_accepts_params_and_tf1_inputs(tmp_path):
    x, y = classes_data(5)
    params = tf.contrib.training.HParams(batch_size=4, rate=0.1)
    estimator = tf.estimator.Estimator(
        estimator_model_fn,
        str(tmp_path),
        tf.estimator.RunConfig(save_checkpoints_steps=10, tf_random_seed=1),
        params,
    )
    train = tf.estimator.inputs.numpy_input_fn(
        {"x": x}, y, batch_size=16, num_epochs=None, shuffle=True
    )
    evaluate = tf.estimator.inputs.numpy_input_fn(
        {"x": x}, y, batch_size=24, shuffle=False
    )
    before = estimator.evaluate(evaluate, name="before")
    spec = tf.estimator.TrainSpec(train, max_steps=20)
    result, _ = tf.estimator.train_and_evaluate(
        estimator, spec, tf.estimator.EvalSpec(evaluate, throttle_secs=0)
    )
    assert result["loss"] < before["loss"]
    assert result["accuracy"] > before["accuracy"]
    assert result["global_step"] == 20
    assert len(list(estimator.predict(evaluate))) == len(x)
    assert estimator.params.batch_size == 4
    from tensorflow.python.estimator.estimator import (
        _load_global_step_from_checkpoint_dir,
    )

    assert _load_global_step_from_checkpoint_dir(str(tmp_path)) == 20


def test_host_call_writes_summaries_of_contrib(tmp_path):
    directory = str(tmp_path / "summaries")

    def host_call_fn(step, loss):
        summary = tf.contrib.summary
        step = step[0]
        with summary.create_file_writer(directory).as_default():
            with summary.record_summaries_every_n_global_steps(2, step):
                summary.scalar("own_loss", loss[0], step=step)
                return summary.all_summary_ops()

    def with_host_call(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        step = tf.reshape(tf.train.get_global_step(), [1])
        tensors = [step, tf.reshape(spec.loss, [1])]
        return spec._replace(host_call=(host_call_fn, tensors))

    data = batches(*classes_data(5), steps=4)
    estimator = tf.estimator.tpu.TPUEstimator(
        with_host_call,
        config=tf.estimator.tpu.RunConfig(model_dir=str(tmp_path)),
        use_tpu=False,
        train_batch_size=BATCH,
    )
    estimator.train(fed(data), steps=4)
    (file,) = (tmp_path / "summaries").glob("events*")
    written = [
        (value.tag, event.step)
        for event in tf.train.summary_iterator(str(file))
        for value in event.summary.value
    ]
    assert len(written) == 2
    assert {tag for tag, _ in written} == {"own_loss"}
    assert all(step % 2 == 0 for _, step in written)


class _TwoReplicas:
    """A strategy over two devices, which this machine may not have."""

    num_replicas_in_sync = 2


def test_strategies_with_several_replicas_are_refused():
    with pytest.raises(ValueError, match="`train_distribute` .* with 2 replicas"):
        tf.estimator.RunConfig(train_distribute=_TwoReplicas())
    with pytest.raises(ValueError, match="`eval_distribute` .* with 2 replicas"):
        tf.estimator.RunConfig().replace(eval_distribute=_TwoReplicas())
    with pytest.raises(ValueError, match="`train_distribute` must be None"):
        tf.estimator.tpu.RunConfig(train_distribute="mirrored")


def test_a_strategy_with_one_replica_changes_no_result(tmp_path, monkeypatch):
    warned = []
    monkeypatch.setattr(run_configs, "warn_once", warned.append)

    def input_fn():
        x = np.arange(16, dtype="float32").reshape(8, 2) / 16
        data = tf.data.Dataset.from_tensor_slices((x, x[:, :1] * 3 + 1))
        return data.batch(4).repeat()

    def model_fn(features, labels, mode):
        half = tf.constant_initializer(0.5)
        w = tf.get_variable("w", [2, 1], initializer=half)
        loss = tf.reduce_mean(tf.square(tf.matmul(features, w) - labels))
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    config = tf.estimator.RunConfig(
        str(tmp_path), train_distribute=strategy, eval_distribute=strategy
    )
    assert config.train_distribute is strategy
    estimator = tf.estimator.Estimator(model_fn, config=config)
    estimator.train(input_fn, steps=5)
    # The values of TensorFlow 1.15.
    expected = [[2.2676988], [2.5070648]]
    np.testing.assert_allclose(estimator.get_variable_value("w"), expected, rtol=1e-6)
    loss = estimator.evaluate(input_fn, steps=2)["loss"]
    np.testing.assert_allclose(loss, 0.26284975, rtol=1e-6)
    assert len(warned) == 2
    assert all("has one replica" in line for line in warned)


def test_arrays_become_batches():
    x, y = {"a": np.arange(5), "b": np.ones((5, 2))}, np.arange(5) * 10
    input_fn = tf.estimator.inputs.numpy_input_fn(
        x, y, batch_size=4, num_epochs=2, shuffle=False
    )
    with tf.Graph().as_default(), tf.Session() as session:
        batch = input_fn()
        rows = [session.run(batch) for _ in range(3)]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(batch)
    assert [list(labels) for _, labels in rows] == [
        [0, 10, 20, 30],
        [40, 0, 10, 20],
        [30, 40],
    ]
    assert rows[2][0]["b"].shape == (2, 2)
    with pytest.raises(ValueError, match="`shuffle` must be True or False"):
        tf.estimator.inputs.numpy_input_fn(x, y)
    with pytest.raises(ValueError, match=r"same number of rows.*\[4, 5\]"):
        tf.estimator.inputs.numpy_input_fn(x, y[:4], shuffle=False)


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        ({"a": np.ones(4)}, {"a": np.ones(4)}, ValueError, r"both: \['a'\]"),
        ({}, np.ones(4), ValueError, "`x` must not be empty"),
        (np.ones((0, 2)), None, ValueError, "`x` must not be empty"),
        ({"a": np.ones(4)}, {}, ValueError, "`y` must not be empty"),
        (None, np.ones(4), TypeError, "`x` must be an array or a dict"),
        ([1.0], None, TypeError, "`x` must be an array or a dict"),
    ],
)
def test_invalid_arrays_are_refused(x, y, error, message):
    with pytest.raises(error, match=message):
        tf.estimator.inputs.numpy_input_fn(x, y, shuffle=False)


class Frame(dict):
    """The part of a Pandas `DataFrame` that input functions read."""

    def __init__(self, columns, index):
        super().__init__(columns)
        self.index = np.asarray(index)

    @property
    def columns(self):
        return [*self]

    def __len__(self):
        return len(self.index)


class Series(np.ndarray):
    """The part of a Pandas `Series` that input functions read."""

    @classmethod
    def of(cls, values, index):
        series = np.asarray(values).view(cls)
        series.index = np.asarray(index)
        return series


FRAME = Frame({"a": np.arange(4.0), "b": np.arange(4) + 5}, [0, 1, 2, 3])


def first_batch(x, y=None, **settings):
    """Returns the first batch of three rows, read after `x` has changed."""
    input_fn = tf.estimator.inputs.pandas_input_fn(x, y, batch_size=3, **settings)
    before = {name: column.copy() for name, column in x.items()}
    try:
        for column in x.values():
            column[:] = 0
        with tf.Graph().as_default(), tf.Session() as session:
            return session.run(input_fn())
    finally:
        x.update(before)


def test_frames_become_batches():
    # The results of TensorFlow 1.15.
    features = first_batch(FRAME, shuffle=False, queue_capacity=None)
    np.testing.assert_equal(features, {"a": [0, 1, 2], "b": [5, 6, 7]})
    labels = Series.of([6, 7, 8, 9], FRAME.index)
    result = first_batch(FRAME, labels, shuffle=False)
    np.testing.assert_equal(result, (features, [6, 7, 8]))
    # Columns of both may have one name.
    labels = Frame({"a": np.arange(4) * 10, "c": np.arange(4) * 7}, FRAME.index)
    result = first_batch(FRAME, labels, shuffle=False)
    np.testing.assert_equal(result, (features, {"a": [0, 10, 20], "c": [0, 7, 14]}))
    result = first_batch(FRAME, shuffle=True, queue_capacity=None)
    np.testing.assert_equal(result["a"] + 5, result["b"])


@pytest.mark.parametrize(
    ("x", "settings", "error", "message"),
    [
        (FRAME, {"y": [3, 2, 1, 0]}, ValueError, "`x` and `y` must have the same ind"),
        (FRAME, {"y": [0, 1, 2]}, ValueError, "`x` and `y` must have the same index"),
        (FRAME, {"target_column": ["one"]}, TypeError, "`target_column` must be a str"),
        (
            FRAME,
            {"y": [0, 1, 2, 3], "target_column": "b"},
            ValueError,
            "`target_column` must differ",
        ),
        (FRAME, {"shuffle": None}, ValueError, "`shuffle` must be True or False"),
        (Frame({}, [0, 1]), {}, ValueError, "2 rows and 0 columns"),
        (Frame({"a": np.ones(0)}, []), {}, ValueError, "0 rows and 1 columns"),
    ],
)
def test_invalid_frames_are_refused(x, settings, error, message):
    if "y" in settings:
        settings = {**settings, "y": Series.of(settings["y"], settings["y"])}
    with pytest.raises(error, match=message):
        tf.estimator.inputs.pandas_input_fn(x, **{"shuffle": False, **settings})
