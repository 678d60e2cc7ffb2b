"""Tests attributes that scripts query of configurations and hook lists."""

import keras_tpu_estimator as kte  # isort: skip

import copy
import pickle

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1_tools import tf_estimator
from keras_tpu_estimator.tf1_tools.tf_estimator import tpu


def test_only_a_configuration_for_tpus_has_a_tpu_config():
    # Tensor2Tensor reads it, and TensorFlow 1.15.5 behaves the same.
    plain, for_tpus = tf_estimator.RunConfig("/tmp/run"), tpu.RunConfig()
    assert not hasattr(plain, "tpu_config")
    assert hasattr(for_tpus, "tpu_config")
    assert not isinstance(plain, tpu.RunConfig)
    with pytest.raises(AttributeError, match="Make a tf.estimator.tpu.Run"):
        plain.tpu_config  # noqa: B018


def test_only_configurations_for_tpus_evaluate_on_the_master(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"session_master": "there"}')
    for config, expected in (
        (tf_estimator.RunConfig(), ""),
        (tpu.RunConfig(), "there"),
    ):
        assert (config.master, config.evaluation_master) == ("there", expected)


@pytest.mark.parametrize(
    "copied",
    [
        lambda c: c.replace(save_summary_steps=7),
        copy.deepcopy,
        lambda c: pickle.loads(pickle.dumps(c)),
    ],
    ids=["replace", "deepcopy", "pickle"],
)
def test_copies_of_a_plain_configuration_are_plain(copied):
    config = tf_estimator.RunConfig("/tmp/run", save_summary_steps=7)
    new = copied(config)
    assert not hasattr(new, "tpu_config")
    assert new == config
    assert repr(new) == "RunConfig(model_dir='/tmp/run', save_summary_steps=7)"


def test_functions_do_not_see_a_tpu_config_of_a_plain_configuration(tmp_path):
    seen = []

    def input_fn(config):
        seen.append(hasattr(config, "tpu_config"))
        return tf.data.Dataset.from_tensors(np.ones((2, 1), "float32"))

    def model_fn(features, labels, mode, params, config):
        seen.append(hasattr(config, "tpu_config"))
        w = tf.get_variable("w", [], initializer=tf.ones_initializer())
        loss = tf.reduce_mean(features * w)
        step = tf.train.get_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.5).minimize(loss, step)
        return kte.tf1.EstimatorSpec(mode, loss=loss, train_op=train_op)

    class Own(tf_estimator.RunConfig):
        """A program may define a subclass."""

    config = Own(str(tmp_path))
    made = tf_estimator.Estimator(model_fn, config=config, params={})
    made.train(input_fn, steps=1)
    made.evaluate(input_fn, steps=1)
    assert made.get_variable_value("w") == 0.5
    seen.append(hasattr(made.config, "tpu_config"))
    assert seen == [False] * len(seen)
    assert len(seen) >= 5


def test_monitors_are_hooks():
    kte.tf1.install()
    from tensorflow.contrib.learn import monitors

    hooks = [tf.train.NanTensorHook("loss"), kte.hooks.StopAtStepHook(3)]
    assert monitors.replace_monitors_with_hooks(hooks, None) == hooks
    assert monitors.replace_monitors_with_hooks(None, None) == []
    with pytest.raises(TypeError, match="Write the monitor as a tf.train.Ses"):
        monitors.replace_monitors_with_hooks([object()], None)
    replace = tf.contrib.learn.monitors.replace_monitors_with_hooks
    assert replace is monitors.replace_monitors_with_hooks


def test_devices_have_the_names_of_tensorflow_1():
    kte.tf1.install()
    devices = tf.contrib.eager.list_devices()
    assert devices[0] == "/job:localhost/replica:0/task:0/device:CPU:0"
    assert not [name for name in devices if "/device:GPU" in name]


def test_other_names_of_eager_have_fitting_advice():
    kte.tf1.install()
    with pytest.raises(AttributeError, match=r"Use tf\.metrics, tf\.layers and tf\.d"):
        tf.contrib.eager.Network  # noqa: B018


def test_scripts_read_the_originals_number_of_iterations():
    config = tpu.TPUConfig()
    assert config.iterations_per_loop == config[0] == 2
    assert config == tpu.TPUConfig(iterations_per_loop=2)
    # Loops end where hooks act.
    assert config.iterations is None
    assert tpu.TPUConfig(7).iterations.value == 7
    assert repr(tpu.RunConfig(config)) == "TPURunConfig()"


class Runs(tf.train.SessionRunHook):
    """Records the global step after each run."""

    def __init__(self):
        self.steps = []

    def after_run(self, run_context, run_values):
        step = tf.train.get_global_step()
        self.steps.append(int(run_context.session.run(step)))


@pytest.mark.parametrize(
    "iterations, use_tpu, steps",
    [
        (3, True, [3, 5]),
        (None, False, [1, 2, 3, 4, 5]),
        (3, False, [1, 2, 3, 4, 5]),
    ],
)
def test_loops_of_a_script_that_reads_iterations(tmp_path, iterations, use_tpu, steps):
    def model_fn(features, labels, mode, params, config):
        rate = 0.5 / config.tpu_config.iterations_per_loop
        w = tf.get_variable("w", [], initializer=tf.ones_initializer())
        loss = tf.reduce_mean(features * w)
        step = tf.train.get_global_step()
        train_op = tf.train.GradientDescentOptimizer(rate).minimize(loss, step)
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn(params):
        ones = np.ones((params["batch_size"], 1), "float32")
        return tf.data.Dataset.from_tensors(ones).repeat()

    # One core needs no CrossShardOptimizer.
    settings = {"num_shards": 1}
    if iterations is not None:
        settings["iterations_per_loop"] = iterations
    made = tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(tpu.TPUConfig(**settings), model_dir=str(tmp_path)),
        use_tpu=use_tpu,
        train_batch_size=8,
    )
    runs = Runs()
    made.train(input_fn, hooks=[runs], steps=5)
    assert runs.steps == steps
    assert made.config.tpu_config.iterations_per_loop == (iterations or 2)
    rate = 0.5 / (iterations or 2)
    assert made.get_variable_value("w") == pytest.approx(1 - 5 * rate)
