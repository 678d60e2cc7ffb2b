"""Tests TF1's names of variables, and their initial values."""

import keras_tpu_estimator as kte  # isort: skip

import logging
import operator

import jax
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import BATCH, dense, estimator, fed, trained, values_of, variable

from keras_tpu_estimator.tf1.graph.building import as_in_tf2, building

X = np.ones((16, 2), "float32")


def trainer(network, scaffold_fn=None):
    """A model_fn that makes variables without training them."""

    def model_fn(features, labels, mode, params):
        loss = tf.reduce_sum(network(features))
        train_op = tf.assign_add(tf.train.get_global_step(), 1)
        return kte.tf1.TPUEstimatorSpec(
            mode, loss=loss, train_op=train_op, scaffold_fn=scaffold_fn
        )

    return model_fn


def values_after(network, tmp_path, scaffold_fn=None, **settings):
    """The values of variables after one step that changes none."""
    made = estimator(trainer(network, scaffold_fn), tmp_path, **settings)
    made.train(fed([X]), steps=1)
    return values_of(made)


def test_scopes_and_reuse_name_variables(tmp_path):
    def network(x):
        with tf.variable_scope("tower"):
            x = dense(x, 2, "layer")
        with tf.variable_scope("tower", reuse=True):
            x = dense(x, 2, "layer")
        # Infeed takes no names.
        return x * tf.Variable(1.0, name="Placeholder")

    assert sorted(values_after(network, tmp_path)) == [
        "Placeholder",
        "global_step",
        "tower/layer/bias",
        "tower/layer/kernel",
    ]


def test_variables_of_many_dtypes(tmp_path):
    dtypes = [tf.bfloat16, tf.float16, tf.int64, tf.bool, tf.uint8]

    def network(x):
        for dtype in dtypes:
            made = tf.get_variable(
                dtype.name,
                initializer=tf.cast([1, 0], dtype),
                trainable=False,
            )
            x += tf.cast(made, tf.float32)
        return x

    values = values_after(network, tmp_path)
    for dtype in dtypes:
        assert values[dtype.name].astype("float32").tolist() == [1, 0]


def test_seed_repeats_initial_values(tmp_path):
    def network(x):
        return x * tf.get_variable("w", [2])

    first, second, other = (
        values_after(network, tmp_path / str(i), seed=seed)["w"]
        for i, seed in enumerate((3, 3, 4))
    )
    assert np.array_equal(first, second) and not np.array_equal(first, other)


def test_initial_values_are_copied_and_nothing_is_compiled(caplog):
    def network(x):
        return x @ tf.get_variable("drawn", [2, 7]) @ variable("w", 7, 9)

    model = kte.EstimatorModel.from_model_fn(kte.tf1.model_fn(trainer(network)))
    model.prepare(kte.ModeKeys.TRAIN, X)
    with jax.log_compiles(), caplog.at_level(logging.WARNING, "jax"):
        values = model.program.store.initial_values()
        assert "[2,7]" not in caplog.text
        assert "[7,9]" not in caplog.text
        # The log contains compiled programs with their shapes.
        jax.jit(lambda x: -x)(values["w"])
    assert "[7,9]" in caplog.text


def test_shape_that_differs_between_modes_is_an_error(tmp_path):
    sizes = iter([2, 1])
    made = estimator(
        trainer(lambda x: x * tf.get_variable("w", [next(sizes)])), tmp_path
    )
    made.train(fed([X]), steps=1)
    with pytest.raises(ValueError, match=r"'w' has shape \(1,\)"):
        made.evaluate(fed([X]))


def counted(features):
    """Reads a variable before and after each of two assignments."""
    with tf.variable_scope("count", reuse=tf.AUTO_REUSE):
        count = tf.get_variable("n", [], initializer=tf.zeros_initializer)
    late = tf.reduce_sum(features)
    for _ in range(20):
        late = tf.sin(late)
    seen, ops = [], []
    # Reads are delayed and writes are not, so only their order in the script determines
    # the values.
    for _ in range(2):
        with tf.control_dependencies([late]):
            seen.append(count.read_value())
        ops.append(tf.assign_add(count, 1.0).op)
    seen.append(count.read_value())
    with tf.control_dependencies(ops):
        return tf.stack(seen)


@pytest.mark.parametrize("in_a_condition", [False, True])
def test_reads_and_writes_have_the_order_of_the_script(tmp_path, in_a_condition):
    def model_fn(features, labels, mode, params):
        step = tf.train.get_global_step()
        log = tf.get_variable("log", [3], initializer=tf.zeros_initializer)
        if in_a_condition:
            with tf.variable_scope("count"):
                tf.get_variable("n", [], initializer=tf.zeros_initializer)
            seen = tf.cond(step >= 0, lambda: counted(features), lambda: tf.zeros([3]))
        else:
            seen = counted(features)
        train_op = tf.group(tf.assign(log, seen), tf.assign_add(step, 1))
        return kte.tf1.TPUEstimatorSpec(mode, loss=tf.constant(0.0), train_op=train_op)

    made = estimator(model_fn, tmp_path)
    made.train(fed([X] * 3), steps=3)
    assert values_of(made)["log"].tolist() == [4, 5, 6]


def test_script_may_disable_tf2_behavior(tmp_path):
    def network(x):
        _, x = tf.while_loop(
            lambda i, _: i < 2,
            lambda i, x: (i + 1, x * variable("w", 2)),
            (0, x),
        )
        return x

    tf.disable_resource_variables()
    tf.disable_control_flow_v2()
    try:
        assert sorted(values_after(network, tmp_path)) == ["global_step", "w"]
        assert not tf.resource_variables_enabled()
        assert not tf.control_flow_v2_enabled()
    finally:
        tf.enable_resource_variables()
        tf.enable_control_flow_v2()


def test_settings_stay_while_any_thread_needs_them():
    tf.disable_resource_variables()
    try:
        with as_in_tf2():
            with as_in_tf2():
                pass
            assert tf.resource_variables_enabled()
        assert not tf.resource_variables_enabled()
    finally:
        tf.enable_resource_variables()


def test_checkpoint_warm_starts_another_script(tmp_path):
    def network(x):
        return x * variable("w", 2, seed=int(x.shape[0]))

    values_after(network, tmp_path / "a")

    def other(x):
        return x * tf.get_variable("w", [2])

    values = values_after(other, tmp_path / "b", warm_start_from=str(tmp_path / "a"))
    expected = values_after(network, tmp_path / "a")
    assert np.array_equal(values["w"], expected["w"])


@pytest.mark.parametrize("use_tpu", [False, True])
def test_initialized_values_are_those_of_the_variable(tmp_path, use_tpu):
    def model_fn(features, labels, mode, params):
        weights = tf.get_variable(
            "weights", [2, 1], initializer=tf.random_normal_initializer()
        )
        twice = tf.Variable(
            2 * weights.initialized_value(), name="twice", trainable=False
        )
        total = tf.Variable(
            tf.zeros_like(twice.initialized_value()),
            name="total",
            trainable=False,
        )
        loss = tf.reduce_sum(tf.matmul(features, weights))
        step = tf.train.get_global_step()
        train_op = tf.group(total.assign_add(twice), step.assign_add(1))
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    x = np.ones((BATCH, 2), "float32")
    found = trained(model_fn, tmp_path, [x, x], use_tpu=use_tpu)
    assert np.abs(found["weights"]).min() > 0
    np.testing.assert_array_equal(found["twice"], 2 * found["weights"])
    np.testing.assert_array_equal(found["total"], 4 * found["weights"])
    # A variable that has a value keeps it.
    again = trained(model_fn, tmp_path, [x, x], use_tpu=use_tpu)
    np.testing.assert_array_equal(again["weights"], found["weights"])
    np.testing.assert_array_equal(again["total"], 8 * found["weights"])


def test_variables_are_true_and_operators_do_not_assign_them():
    with building(seed=None):
        scale = tf.get_variable("scale", [], initializer=tf.constant_initializer(3.0))
        averages = tf.train.ExponentialMovingAverage(0.5)
        averages.apply([scale])
        # Such getters choose the average if there is one.
        used = averages.average(scale) or scale
        assert used.op.name == "scale/ExponentialMovingAverage"
        assert not averages.average(used)
        assert tf.Variable(False)
        names = ["iadd", "isub", "imul", "itruediv", "ipow"]
        changed = [getattr(operator, name)(used, 2.0) for name in names]
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            # The values of TensorFlow 1.15.
            assert session.run(changed) == [5.0, 1.0, 6.0, 1.5, 9.0]
            assert session.run(used) == 3.0
    with pytest.raises(RuntimeError, match="is not supported"):
        operator.iadd(tf.Variable(1.0), 1.0)
