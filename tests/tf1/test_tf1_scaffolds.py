"""Tests of initial values: `init_from_checkpoint`, and `tf.train.Scaffold`."""

import keras_tpu_estimator as kte  # isort: skip

import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2
from tf1_programs import estimator, fed, values_of, variable

X = np.ones((16, 2), "float32")
OLD = {"old/w": [3.0, 4.0], "old/b": [5.0], "global_step": 7}


@pytest.fixture
def old(tmp_path):
    """A TensorFlow checkpoint."""
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in OLD.items():
            dtype = tf.int64 if name == "global_step" else tf.float32
            tf.get_variable(name, initializer=tf.constant(value, dtype))
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(tmp_path / "old" / "x"))


def model_fn_of(scaffold_fn, network=None, spec=None):
    """A script with two variables that training does not change."""

    def model_fn(features, labels, mode, params):
        with tf.variable_scope("new"):
            y = features * variable("w", 2) + variable("b", 1)
        if network is not None:
            network()
        step = tf.train.get_or_create_global_step()
        if spec is not None:
            return spec(mode, y, step)
        return kte.tf1.TPUEstimatorSpec(
            mode,
            loss=tf.reduce_mean(y),
            train_op=step.assign_add(1),
            predictions={"y": y},
            scaffold_fn=scaffold_fn,
        )

    return model_fn


def values_after(tmp_path, *args, **kwargs):
    """The values of all variables after a step that changes none."""
    made = estimator(model_fn_of(*args, **kwargs), tmp_path / "new")
    made.train(fed([X]), steps=1)
    return values_of(made)


@pytest.mark.parametrize("in_scaffold_fn", [False, True])
@pytest.mark.parametrize(
    "assignment_map",
    [
        {"old/": "new/"},
        {"old/w": "new/w", "old/b": "new/b"},
        lambda: {v.op.name.replace("new", "old"): v for v in tf.global_variables()[1:]},
    ],
)
def test_init_from_checkpoint(tmp_path, old, assignment_map, in_scaffold_fn, caplog):
    def initialize():
        made = assignment_map() if callable(assignment_map) else assignment_map
        tf.train.init_from_checkpoint(old, made)
        return tf.train.Scaffold()

    with caplog.at_level(logging.INFO, "keras_tpu_estimator"):
        values = (
            values_after(tmp_path, initialize)
            if in_scaffold_fn
            else values_after(tmp_path, None, initialize)
        )
    assert values["new/w"].tolist() == OLD["old/w"]
    assert values["new/b"].tolist() == OLD["old/b"]
    assert values["global_step"] == 1
    assert f"Initial values of 2 of 2 variables: {old}" in caplog.text


def test_init_fn_restores_and_assigns(tmp_path, old):
    calls = []

    def scaffold_fn():
        w, b = tf.global_variables()[1:]
        saver = tf.train.Saver({"old/w": w})
        doubled = b.assign(b * 2)

        def init_fn(scaffold, session):
            calls.append(isinstance(scaffold, tf.train.Scaffold))
            saver.restore(session, old)
            session.run(doubled)

        return tf.train.Scaffold(init_fn=init_fn)

    values = values_after(tmp_path, scaffold_fn)
    assert calls == [True]
    before = values_after(tmp_path / "other", None)
    assert values["new/w"].tolist() == OLD["old/w"]
    np.testing.assert_allclose(values["new/b"], 2 * before["new/b"])
    # The estimator's own checkpoint is not initialized again.
    made = estimator(model_fn_of(scaffold_fn), tmp_path / "new")
    made.train(fed([X]), steps=1)
    assert calls == [True]


@pytest.mark.parametrize("use_tpu", [False, True])
def test_averages_replace_variables(tmp_path, use_tpu):
    def model_fn(features, labels, mode, params):
        w = variable("w", 2)
        y = features * w
        step = tf.train.get_or_create_global_step()
        averages = tf.train.ExponentialMovingAverage(0.5)
        if mode == kte.ModeKeys.TRAIN:
            with tf.control_dependencies([w.assign_add([1.0, 1.0])]):
                train_op = tf.group(averages.apply([w]), step.assign_add(1))
            return kte.tf1.TPUEstimatorSpec(
                mode, loss=tf.reduce_sum(y), train_op=train_op
            )

        def scaffold_fn():
            saver = tf.train.Saver(averages.variables_to_restore())
            return tf.train.Scaffold(saver=saver)

        return kte.tf1.TPUEstimatorSpec(
            mode,
            loss=tf.reduce_mean(y),
            predictions={"y": y},
            scaffold_fn=scaffold_fn,
        )

    made = estimator(model_fn, tmp_path, use_tpu=use_tpu)
    made.train(fed([X, X, X]), steps=3)
    values = values_of(made)
    average = values["w/ExponentialMovingAverage"]
    assert not np.allclose(average, values["w"])
    result = made.evaluate(fed([X]), steps=1)
    np.testing.assert_allclose(result["loss"], average.mean(), rtol=1e-6)
    (row, *_) = made.predict(fed([X]))
    np.testing.assert_allclose(row["y"], average)
    # The model keeps its own values.
    made.train(fed([X]), steps=1)
    np.testing.assert_allclose(values_of(made)["w"], values["w"] + 1)


def test_scaffold_of_an_estimator_spec(tmp_path, old):
    def spec(mode, y, step):
        saver = tf.train.Saver({"old/w": tf.global_variables()[1]})
        scaffold = tf.train.Scaffold(
            init_fn=lambda scaffold, session: saver.restore(session, old)
        )
        return kte.tf1.EstimatorSpec(
            mode,
            loss=tf.reduce_mean(y),
            train_op=step.assign_add(1),
            scaffold=scaffold,
        )

    values = values_after(tmp_path, None, spec=spec)
    assert values["new/w"].tolist() == OLD["old/w"]


def test_fields_without_effect_are_accepted(tmp_path):
    def scaffold_fn():
        return tf.train.Scaffold(
            ready_op=tf.report_uninitialized_variables(),
            ready_for_local_init_op=tf.constant([], tf.string),
            local_init_op=tf.no_op(),
            summary_op=tf.summary.merge_all(),
            saver=tf.train.Saver(max_to_keep=3),
        )

    assert values_after(tmp_path, scaffold_fn)["global_step"] == 1


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"max_to_keep": 3}, [2, 3, 4]),
        ({"max_to_keep": 0}, [0, 1, 2, 3, 4]),
        # A saver's defaults also replace those of RunConfig.
        ({}, [0, 1, 2, 3, 4]),
    ],
)
@pytest.mark.parametrize("is_collected", [False, True])
def test_saver_decides_which_checkpoints_are_kept(
    settings, kept, is_collected, tmp_path
):
    # TensorFlow 1.15.5 keeps the same.
    def of_saver(features, labels, mode, params):
        step = tf.train.get_global_step()
        w = tf.get_variable("w", [])
        saver = tf.train.Saver(**settings)
        if is_collected:
            tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
        scaffold = None if is_collected else tf.train.Scaffold(saver=saver)
        return kte.tf1.EstimatorSpec(
            mode, loss=w * w, train_op=step.assign_add(1), scaffold=scaffold
        )

    config = kte.RunConfig(
        model_dir=str(tmp_path), save_checkpoints_steps=1, keep_checkpoint_max=1
    )
    made = kte.TPUEstimator(
        kte.tf1.model_fn(of_saver), config=config, use_tpu=False, train_batch_size=2
    )
    made.train(fed([X] * 4), steps=4)
    steps = [int(path.stem.split("-")[1]) for path in tmp_path.glob("*.index")]
    assert sorted(steps) == kept


@pytest.mark.parametrize("is_subclass", [False, True])
def test_saver_of_a_hook_decides_which_checkpoints_are_kept(is_subclass, tmp_path):
    kind = tf.train.CheckpointSaverHook
    if is_subclass:
        kind = type("Own", (kind,), {})
    hooks = []

    def of_hook(features, labels, mode, params):
        step = tf.train.get_global_step()
        w = tf.get_variable("w", [])
        saver = tf.train.Saver(max_to_keep=2)
        hooks[:] = hooks or [kind(str(tmp_path), save_steps=1, saver=saver)]
        return kte.tf1.EstimatorSpec(
            mode, loss=w * w, train_op=step.assign_add(1), training_hooks=hooks
        )

    made = estimator(of_hook, tmp_path, use_tpu=False, iterations=1)
    for kept in ([3, 4], [7, 8]):
        made.train(fed([X] * 4), steps=4)
        steps = [int(path.stem.split("-")[1]) for path in tmp_path.glob("*.index")]
        assert sorted(steps) == kept


def test_init_op_runs_after_restoring_a_checkpoint(tmp_path, old):
    def scaffold_fn():
        tf.train.init_from_checkpoint(old, {"old/": "new/"})
        b = tf.global_variables()[2]
        fed = tf.placeholder(tf.float32, b.shape)
        with tf.control_dependencies([tf.global_variables_initializer()]):
            init_op = tf.assign(b, tf.zeros_like(b) + fed)
        return tf.train.Scaffold(
            init_op=init_op,
            init_feed_dict={fed: np.full(b.shape, 3.0)},
            init_fn=lambda scaffold, session: session.run(b.assign(b * 2)),
        )

    values = values_after(tmp_path, scaffold_fn)
    assert values["new/w"].tolist() == OLD["old/w"]
    np.testing.assert_array_equal(values["new/b"], 6.0)
    assert values["global_step"] == 1


def test_other_names_in_training_are_refused(tmp_path):
    def scaffold_fn():
        w = tf.global_variables()[1]
        return tf.train.Scaffold(saver=tf.train.Saver({"other": w}))

    with pytest.raises(NotImplementedError, match="{'other': 'new/w'}"):
        values_after(tmp_path, scaffold_fn)


def test_missing_scaffold_is_refused_only_on_a_tpu(tmp_path):
    model_fn = model_fn_of(lambda: None)
    estimator(model_fn, tmp_path).train(fed([X]), steps=1)
    made = estimator(model_fn, tmp_path / "tpu", use_tpu=True)
    with pytest.raises(ValueError, match="must return a tf.train.Scaffold"):
        made.train(fed([X]), steps=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scaffold": 1}, "`scaffold` must be a tf.train.Scaffold"),
        ({"scaffold_fn": 1}, "`scaffold_fn` must be a function"),
    ],
)
def test_invalid_scaffold_is_refused(fields, message):
    kind = kte.tf1.EstimatorSpec if "scaffold" in fields else kte.tf1.TPUEstimatorSpec
    with tf.Graph().as_default(), pytest.raises(TypeError, match=message):
        kind("eval", loss=1.0, **fields)


class Net(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable([1.0, 2.0], name="inner/w")


@pytest.mark.parametrize("kind", [tf.train.Checkpoint, tf2.train.Checkpoint])
def test_checkpoint_as_a_saver_lets_tensorflow_restore_objects(kind, tmp_path):
    """`Checkpoint.restore` finds the objects of TensorFlow 1.15.5's checkpoints."""

    def of_objects(features, labels, mode, params):
        net, step = Net(), tf.train.get_global_step()
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        loss = tf.reduce_sum(net.w * features)
        saver = kind(net=net, optimizer=optimizer, step=step)
        return kte.tf1.EstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss, step, [net.w]),
            scaffold=tf.train.Scaffold(saver=saver),
        )

    made = estimator(of_objects, tmp_path, use_tpu=False)
    made.train(fed([X]), steps=1)
    made.train(fed([X]), steps=1)
    values = values_of(made)
    assert {*values} == {"global_step", "inner/w", "inner/w/Momentum"}
    prefix = kte.latest_checkpoint(str(tmp_path))
    with tf.Graph().as_default(), tf.Session() as session:
        net = Net()
        step = tf.Variable(0, dtype=tf.int64)
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        update = optimizer.minimize(tf.reduce_sum(net.w), var_list=[net.w])
        status = tf2.train.Checkpoint(net=net, optimizer=optimizer, step=step).restore(
            prefix
        )
        status.assert_nontrivial_match().initialize_or_restore(session)
        slot = optimizer.get_slot(net.w, "momentum")
        assert session.run(step) == 2
        assert session.run(net.w).tolist() == values["inner/w"].tolist()
        assert session.run(slot).tolist() == values["inner/w/Momentum"].tolist()
        session.run(update)
    with tf.Graph().as_default(), tf.Session() as session:
        net = Net()
        tf.train.Saver([net.w]).restore(session, prefix)
        assert session.run(net.w).tolist() == values["inner/w"].tolist()
