"""Tests the classes of `tf.estimator` as TF1 scripts call them."""

import keras_tpu_estimator as kte  # isort: skip

import json

import jax
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1_tools.tf_estimator import Estimator, RunConfig, tpu
from keras_tpu_estimator.tf1_tools.tf_estimator.estimators import with_features

X = np.ones((8, 1), "float32")


def input_fn(params=None):
    return iter([(X, X)] * 4)


def model_fn(features, labels, mode, params):
    rate = params["rates"]["first"]
    w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(features * w - labels))
    optimizer = tf.train.GradientDescentOptimizer(rate)
    if params.get("use_tpu"):
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    return kte.tf1.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, tf.train.get_global_step()),
        eval_metrics=(lambda x: {"mean": tf.metrics.mean(x)}, [features]),
    ).as_estimator_spec()


def without_params(features, labels, mode):
    return model_fn(features, labels, mode, {"rates": {"first": 0.1}})


@pytest.mark.parametrize("is_tpu", [False, True])
def test_params_are_those_of_the_constructor(tmp_path, is_tpu):
    params = {"rates": {"first": 0.5}}
    if is_tpu:
        made = tpu.TPUEstimator(
            model_fn,
            str(tmp_path),
            tpu.RunConfig(),
            params,
            use_tpu=False,
            train_batch_size=8,
        )
    else:
        made = Estimator(model_fn, str(tmp_path), params=params)
    params["rates"]["first"] = 99.0
    params["more"] = 1
    assert made.params == {"rates": {"first": 0.5}}
    made.params["rates"]["first"] = 98.0
    made.train(input_fn, steps=1)
    assert made.get_variable_value("w") == 1


def test_missing_model_fn_is_an_error():
    with pytest.raises(ValueError, match="`model_fn` must be a function"):
        Estimator(None)
    with pytest.raises(ValueError, match="`model_fn` must be a function"):
        tpu.TPUEstimator(None, config=tpu.RunConfig(), use_tpu=False)


def test_params_without_an_argument_are_an_error():
    with pytest.raises(ValueError, match="Add the argument"):
        Estimator(without_params, params={"rate": 1})
    with pytest.raises(ValueError, match="Add the argument"):
        Estimator(without_params, params={})


def test_model_fn_may_be_called_in_a_graph_of_the_script(tmp_path):
    made = Estimator(model_fn, str(tmp_path), params={"rates": {"first": 0.5}})
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.create_global_step()
        spec = made.model_fn(
            tf.constant(X), tf.constant(X), kte.ModeKeys.TRAIN, made.config
        )
        session.run(tf.global_variables_initializer())
        assert session.run(spec.loss) == 1
        session.run(spec.train_op)
        assert session.run(spec.loss) == 0
    assert isinstance(spec, kte.tf1.EstimatorSpec)
    # Another estimator's model_fn may call it or be it.
    for other in (
        made.model_fn,
        lambda features, labels, mode, config: made.model_fn(
            features, labels, mode, config
        ),
    ):
        around = Estimator(other, str(tmp_path / str(id(other))))
        around.train(input_fn, steps=1)
        assert around.get_variable_value("w") == 1


class OwnConfig(RunConfig):
    """A configuration that overrides two fields."""

    @property
    def model_dir(self):
        return "/dev/shm/of_a_subclass"

    @property
    def save_checkpoints_steps(self):
        return 2 * (super().save_checkpoints_steps or 0)


def test_property_of_a_subclass_replaces_a_field():
    config = OwnConfig(save_checkpoints_steps=3)
    assert config.save_checkpoints_steps == 6
    assert config.replace(tf_random_seed=1).save_checkpoints_steps == 6
    assert config.replace(save_checkpoints_steps=5).save_checkpoints_steps == 10
    assert OwnConfig().save_checkpoints_steps == 0
    assert Estimator(without_params, config=config).model_dir == (
        "/dev/shm/of_a_subclass"
    )
    assert RunConfig().model_dir is None
    assert RunConfig.keep_checkpoint_max == 5


TASK = {"type": "worker", "index": 1}
ADDRESSES = {"chief": ["host0:0"], "worker": ["host1:0", "host2:0"]}


def test_configuration_accepts_any_addresses(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": ADDRESSES, "task": TASK}))
    monkeypatch.setattr(jax.distributed, "initialize", pytest.fail)
    config = RunConfig()
    assert config.cluster_spec == tf.train.ClusterSpec(ADDRESSES)
    assert config.cluster_spec.jobs == ["chief", "worker"]
    assert (config.task_type, config.task_id) == ("worker", 1)
    assert (config.num_worker_replicas, config.is_chief) == (3, False)
    assert kte.RunConfig().cluster_spec == ADDRESSES
    with pytest.raises(ValueError, match="Received: 'host0:0'.*in TF_CONFIG"):
        Estimator(without_params, config=config)


def test_configuration_of_a_single_process():
    spec = tpu.RunConfig().cluster_spec
    assert (type(spec).__name__, spec.as_dict()) == ("ClusterSpec", {})
    assert not spec


class Hook(tf.train.SessionRunHook):
    """A hook of TensorFlow's class."""

    runs = 0

    def after_run(self, run_context, run_values):
        self.runs += 1


def test_specs_of_train_and_evaluate_have_the_hooks_of_the_script(tmp_path):
    hook, other = Hook(), Hook()
    train = kte.TrainSpec(input_fn, max_steps=2, hooks=[hook])
    evaluation = kte.EvalSpec(input_fn, steps=1, hooks=(other,))
    assert train.hooks == (hook,) and train.hooks[0] is hook
    assert evaluation.hooks[0] is other
    made = Estimator(without_params, str(tmp_path))
    kte.train_and_evaluate(made, train, evaluation)
    assert (hook.runs, other.runs) == (2, 1)


@pytest.mark.parametrize("rank", [None, 1])
def test_raw_receiver_of_an_unknown_shape(rank):
    with tf.Graph().as_default():
        shape = None if rank is None else [None]
        given = tf.placeholder(tf.float32, shape, name="x")
    build = kte.export.build_raw_serving_input_receiver_fn
    with tf.Graph().as_default():
        made = build({"x": given})().features["x"]
        assert (made.shape.rank, made.op.name) == (rank, "x")


SHARDS = {1: 1, None: 4}


@pytest.mark.parametrize("num_shards", SHARDS)
def test_strategies_with_one_replica_are_accepted(tmp_path, num_shards):
    seen = []

    def noting(features, labels, mode, params):
        seen.append(params["context"].num_replicas)
        return model_fn(features, labels, mode, params)

    config = tpu.RunConfig(
        tpu.TPUConfig(2, num_shards=num_shards, num_cores_per_replica=2),
        model_dir=str(tmp_path),
    )
    made = tpu.TPUEstimator(
        noting,
        config=config,
        params={"rates": {"first": 0.5}},
        train_batch_size=8,
    )
    made.train(input_fn, steps=2)
    assert seen == [SHARDS[num_shards]]
    assert made.get_variable_value("w") == 1


def predicting(features, labels, mode):
    w = tf.get_variable("w", [], initializer=tf.ones_initializer())
    y = w * (features["x"] if isinstance(features, dict) else features)
    step = tf.train.get_global_step()
    return kte.tf1.EstimatorSpec(
        mode,
        predictions={"y": y},
        loss=tf.reduce_mean(y),
        train_op=tf.assign_add(step, 1),
    )


def test_export_of_a_plain_estimator_has_one_metagraph(tmp_path):
    made = Estimator(predicting, str(tmp_path)).train(input_fn, steps=1)
    x = np.float32([[3]])

    def receiver():
        features = {"x": tf.placeholder(tf.float32, [None, 1])}
        return kte.export.ServingInputReceiver(features, features)

    # Tags are needed only for several metagraphs.
    one = tf.saved_model.load_v2(made.export_saved_model(tmp_path / "1", receiver))
    assert one.signatures["serving_default"](x=tf.constant(x))["y"] == 3
    two = tpu.export_estimator_savedmodel(made, tmp_path / "2", receiver)
    loaded = tf.saved_model.load_v2(two, ["serve", "tpu"])
    assert loaded.signatures["serving_default"](x=tf.constant(x))["y"] == 3


@pytest.mark.parametrize(
    "words", [["a", "b"], [["a"], ["b"]], [b"a", b"b"], np.array(["a", "b"])]
)
def test_strings_of_input_fn_may_be_in_lists(words):
    features, labels = with_features(({"word": words, "x": [1.0, 2.0]}, [0, 1]))
    assert np.ravel(features["word"]).astype("S1").tolist() == [b"a", b"b"]
    assert np.shape(features["word"]) == np.shape(words)
    assert labels.tolist() == [0, 1]


def test_strategy_of_contrib_with_one_device_is_accepted():
    from keras_tpu_estimator.tf1.shims.resolving import resolve

    strategy = resolve("contrib.distribute").OneDeviceStrategy("device:CPU:0")
    assert strategy.num_replicas_in_sync == 1
    assert RunConfig(train_distribute=strategy).train_distribute is strategy
