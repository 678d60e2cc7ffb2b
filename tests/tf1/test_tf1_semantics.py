"""Tests that a TF1 `model_fn` has the results of a session."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import control_flow_util, inplace_ops
from tf1_programs import (
    BATCH,
    STEPS,
    assert_same,
    batches,
    classes_data,
    dense,
    each_by_its_own,
    estimator,
    fed,
    model_fn_of,
    run_in_session,
    trained,
    values_of,
    weights,
)


def mlp(features, is_training):
    """Two layers."""
    del is_training
    hidden = dense(features, 6, "hidden", tf.nn.relu, seed=1)
    return dense(hidden, 4, "logits", seed=2)


def counted_by_hand(optimizer, loss, step):
    """Counts steps like BERT's optimization.py, whose optimizer does not."""
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 1.0)
    train_op = optimizer.apply_gradients(
        zip(gradients, variables, strict=True), global_step=step
    )
    new_step = step + 1
    return tf.group(train_op, [step.assign(new_step)])


def test_script_counts_its_steps(tmp_path):
    data = batches(*classes_data(5))
    model_fn = model_fn_of(mlp, lambda step: UncountedSGD(0.1), counted_by_hand)
    _, expected = run_in_session(model_fn, data)
    assert_same(trained(model_fn, tmp_path, data), expected)


class UncountedSGD(tf.train.GradientDescentOptimizer):
    """Applies gradients without counting, like BERT's AdamWeightDecayOptimizer."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        assignments = [
            variable.assign(variable - 0.1 * (gradient + 0.01 * variable))
            for gradient, variable in grads_and_vars
        ]
        return tf.group(*assignments, name=name)


OPTIMIZERS = {
    "adagrad": lambda step: tf.train.AdagradOptimizer(0.1),
    "adadelta": lambda step: tf.train.AdadeltaOptimizer(1.0),
    "ftrl": lambda step: tf.train.FtrlOptimizer(0.1),
    "rmsprop": lambda step: tf.train.RMSPropOptimizer(0.01, momentum=0.5),
    "centered": lambda step: tf.train.RMSPropOptimizer(0.01, centered=True),
    "sgd": lambda step: tf.train.MomentumOptimizer(
        tf.train.piecewise_constant(step, [4, 8], [0.1, 0.01, 0.001]),
        0.9,
        use_nesterov=True,
    ),
    "adam": lambda step: tf.train.AdamOptimizer(
        tf.train.cosine_decay(0.01, step, STEPS)
    ),
}


def layers(features, is_training):
    """The sum of a layer for each optimizer."""
    del is_training
    return tf.add_n(
        [dense(features, 4, name, seed=seed) for seed, name in enumerate(OPTIMIZERS)]
    )


def test_optimizers(tmp_path):
    data = batches(*classes_data(5))
    model_fn = model_fn_of(layers, OPTIMIZERS["sgd"], each_by_its_own(OPTIMIZERS))
    _, expected = run_in_session(model_fn, data)
    assert_same(trained(model_fn, tmp_path, data), expected, rtol=1e-4)


def adversaries(features, labels, mode, params):
    """A generator and a discriminator, each with its own optimizer."""
    noise = features[:, :3]
    with tf.variable_scope("generator"):
        made = dense(noise, 5, "out", tf.tanh, seed=1)
    real, fake = (
        discriminated(x, reuse) for x, reuse in ((features, False), (made, True))
    )
    cross_entropy = tf.nn.sigmoid_cross_entropy_with_logits
    loss_of_d = tf.reduce_mean(
        cross_entropy(labels=tf.ones_like(real), logits=real)
        + cross_entropy(labels=tf.zeros_like(fake), logits=fake)
    )
    loss_of_g = tf.reduce_mean(cross_entropy(labels=tf.ones_like(fake), logits=fake))
    step = tf.train.get_or_create_global_step()
    optimizers = [tf.train.AdamOptimizer(0.01, beta1=0.5, name=name) for name in "dg"]
    if params["use_tpu"]:
        optimizers = [tf.tpu.CrossShardOptimizer(each) for each in optimizers]
    d_step = optimizers[0].minimize(
        loss_of_d, var_list=tf.trainable_variables("discriminator")
    )
    with tf.control_dependencies([d_step]):
        g_step = optimizers[1].minimize(
            loss_of_g, step, var_list=tf.trainable_variables("generator")
        )
    return kte.tf1.TPUEstimatorSpec(
        mode, loss=loss_of_d + loss_of_g, train_op=tf.group(d_step, g_step)
    )


def discriminated(x, reuse):
    """Logits of being real."""
    with tf.variable_scope("discriminator", reuse=reuse):
        x = dense(x, 4, "hidden", tf.nn.leaky_relu, seed=2)
        return dense(x, 1, "out", seed=3)


def test_two_optimizers(tmp_path):
    data = batches(*classes_data(5))
    losses, expected = run_in_session(adversaries, data)
    assert np.isfinite(losses).all()
    one = trained(adversaries, tmp_path / "one", data)
    assert_same(one, expected, rtol=1e-4)
    eight = trained(adversaries, tmp_path / "eight", data, use_tpu=True)
    assert_same(eight, one, rtol=1e-4, atol=1e-5)


def test_a_custom_getter(tmp_path):
    def doubled(getter, name, *args, **kwargs):
        return 2.0 * getter(name, *args, **kwargs)

    def network(features, is_training):
        with tf.variable_scope("scope", custom_getter=doubled):
            return dense(features, 4, "logits")

    data = batches(*classes_data(5))
    model_fn = model_fn_of(network, lambda step: tf.train.GradientDescentOptimizer(0.1))
    _, expected = run_in_session(model_fn, data)
    assert_same(trained(model_fn, tmp_path, data), expected)


def test_a_scope_of_bfloat16(tmp_path):
    def network(features, is_training):
        with tf.tpu.bfloat16_scope():
            kernel = tf.get_variable("kernel", [5, 4], tf.bfloat16, weights(5, 4))
            logits = tf.matmul(tf.cast(features, tf.bfloat16), kernel)
            assert logits.dtype == tf.bfloat16
        return tf.cast(logits, tf.float32)

    data = batches(*classes_data(5))
    model_fn = model_fn_of(network, lambda step: tf.train.GradientDescentOptimizer(0.1))
    _, expected = run_in_session(model_fn, data)
    values = trained(model_fn, tmp_path, data)
    # The variables are wide, and what is computed is not.
    assert values["kernel"].dtype == np.float32
    assert_same(values, expected, rtol=1e-2, atol=1e-2)


def on_a_gpu(features, is_training):
    """Places all operations on a GPU, including the initial value."""
    with tf.device("/gpu:0"):
        normal = tf.random_normal_initializer(seed=1)
        w = tf.get_variable("w", [features.shape[-1], 4], initializer=normal)
        return tf.matmul(features, w)


def test_missing_devices_are_ignored(tmp_path):
    data = batches(*classes_data(5), steps=2)
    model_fn = model_fn_of(
        on_a_gpu, lambda step: tf.train.GradientDescentOptimizer(0.1)
    )
    made = estimator(model_fn, tmp_path)
    made.train(fed(data), steps=2)
    assert 0 < made.evaluate(fed(data), steps=1)["loss"] < 10
    assert next(made.predict(fed(data)))["probabilities"].shape == (4,)
    assert np.std(values_of(made)["w"]) > 0.1


def test_assertions_and_prints_are_ignored(tmp_path):
    def network(features, is_training):
        check = tf.debugging.assert_less(features, 100.0)
        with tf.control_dependencies([check]):
            return dense(features, 4, "logits")

    data = batches(*classes_data(5))
    model_fn = model_fn_of(network, lambda step: tf.train.GradientDescentOptimizer(0.1))
    _, expected = run_in_session(model_fn, data)
    assert_same(trained(model_fn, tmp_path, data), expected)


def test_evaluation_and_prediction_with_and_without_cores(tmp_path):
    seen = []

    def network(features, is_training):
        seen.append(features.shape[0])
        return mlp(features, is_training)

    data = batches(*classes_data(5), steps=2)
    model_fn = model_fn_of(network, lambda step: tf.train.GradientDescentOptimizer(0.1))
    trained(model_fn, tmp_path, data, use_tpu=True)
    expected = estimator(model_fn, tmp_path).evaluate(fed(data))
    # The batch of one core.
    assert seen == [2, 16]
    for eval_on_tpu in (False, True):
        seen.clear()
        made = estimator(model_fn, tmp_path, use_tpu=True, eval_on_tpu=eval_on_tpu)
        result = made.evaluate(fed(data))
        assert len(list(made.predict(fed(data)))) == 32
        # Evaluation without a TPU has the complete batch.
        assert seen == [2 if eval_on_tpu else 16, 2]
        assert result["loss"] == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_one_hot_depth_may_exceed_the_range_of_the_dtype(dtype, tmp_path):
    def model_fn(features, labels, mode, params):
        ids = features["id"]

        def one_hot():
            return tf.one_hot(ids, 300)

        zero = tf.zeros([], tf.int32)
        in_function = tf.cond(tf.equal(zero, 0), one_hot, one_hot)
        predictions = {"x": one_hot(), "y": in_function}
        return kte.tf1.TPUEstimatorSpec(mode, predictions=predictions)

    ids = np.array([0, 5, 44, 100, 127, 3, 0, 1], dtype)
    made = estimator(model_fn, tmp_path)
    got = list(made.predict(lambda params: iter([{"id": ids}])))
    for name in "xy":
        np.testing.assert_array_equal([each[name] for each in got], np.eye(300)[ids])


_NAN, _INF = float("nan"), float("inf")


@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_positions_of_extremes_skip_nan(dtype, use_tpu, tmp_path):
    def model_fn(features, labels, mode, params):
        values = tf.cast(features["x"], dtype)

        def found():
            return tf.stack([tf.argmax(values, 1), tf.argmin(values, 1)], 1)

        in_branch = tf.cond(tf.reduce_any(values > 1), found, found)
        return kte.tf1.TPUEstimatorSpec(
            mode, predictions={"x": found(), "y": in_branch}
        )

    # The positions of TensorFlow 1.15.5 on a CPU.
    rows = {
        (_NAN, 1, 3, 2): (2, 1),
        (1, _NAN, 3, 2): (2, 0),
        (_NAN, _NAN, _NAN, _NAN): (0, 0),
        (-_INF, -_INF, -_INF, -_INF): (0, 0),
        (_NAN, -_INF, _NAN, -_INF): (0, 1),
        (_INF, _NAN, _INF, _NAN): (0, 0),
        (_NAN, 2, _INF, _INF): (2, 1),
        (_NAN, _NAN, 5, _NAN): (2, 2),
    }
    x = np.array([*rows], "float32")
    made = estimator(model_fn, tmp_path, use_tpu=use_tpu)
    got = list(made.predict(lambda params: iter([{"x": x}])))
    for name in "xy":
        assert [tuple(each[name]) for each in got] == [*rows.values()]


def test_model_fn_may_replace_features(tmp_path):
    def model_fn(features, labels, mode, params):
        features["x"] = 2 * features["x"]
        features["more"] = labels.pop("y")
        kernel = tf.get_variable("kernel", [2, 1], initializer=weights(2, 1))
        loss = tf.reduce_mean(
            (tf.matmul(features["x"], kernel) - features["more"]) ** 2
        )
        step = tf.train.get_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step)
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    x, y = np.ones((16, 2), "float32"), np.ones((16, 1), "float32")
    made = estimator(model_fn, tmp_path, use_tpu=False)
    made.train(lambda params: iter([({"x": x}, {"y": y})] * 20))
    kernel = made.get_variable_value("kernel")
    assert 2 * kernel.sum() == pytest.approx(1, abs=1e-3)


def test_rows_of_tensors_are_updated_as_in_a_session(tmp_path):
    def updated(x):
        def repeated(n, y):
            return n + 1, inplace_ops.alias_inplace_add(y, [n, -1], y[:2])

        _, y = tf.while_loop(lambda n, y: n < 3, repeated, [0, x + 1.0])
        y = inplace_ops.inplace_sub(y, 1, x[2])
        y = inplace_ops.alias_inplace_update(y, [4, BATCH + 5], x[6:8] * 9.0)
        return inplace_ops.alias_inplace_update(y + 1.0, 7, x[0])

    def model_fn(features, labels, mode, params):
        predictions = {"y": updated(features), "row": features}
        return kte.tf1.TPUEstimatorSpec(mode, predictions=predictions)

    rows = np.arange(2.0 * BATCH, dtype="float32").reshape(BATCH, 2)
    with tf.Graph().as_default(), tf.Session() as session:
        expected = session.run(updated(tf.constant(rows)))
    made = estimator(model_fn, tmp_path)
    found = [row["y"] for row in made.predict(fed([rows]))]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("use_tpu", [True, False])
def test_graphs_for_tpus_have_an_xla_context(use_tpu, tmp_path):
    seen = []

    def is_for_tpus():
        graph = tf.get_default_graph()
        context = graph._get_control_flow_context()
        return control_flow_util.GetContainingXLAContext(context) is not None

    def halved(n, x):
        seen.append(is_for_tpus())
        return n + 1, x / 2

    def model_fn(features, labels, mode, params):
        seen.append(is_for_tpus())
        _, x = tf.while_loop(lambda n, x: n < 2, halved, [0, features])
        # A context for TPUs would reject a tensor as an initial value.
        weight = tf.Variable(tf.ones([1]) * 4.0, use_resource=True)
        y = x * tf.cond(x[0, 0] > 1.0, lambda: weight * 2.0, lambda: weight + 0.0)
        if mode == "infer":
            return kte.tf1.TPUEstimatorSpec(mode, predictions={"y": y})
        loss = tf.reduce_mean(y)
        optimizer = tf.train.GradientDescentOptimizer(0.5)
        if params["use_tpu"]:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    rows = [(np.full([BATCH, 1], 2.0, "float32"), np.zeros([BATCH]))]
    made = estimator(model_fn, tmp_path, use_tpu=use_tpu)
    made.train(fed(rows), steps=1)
    # The loop leaves 0.5 of 2.0, the gradient.
    assert made.evaluate(fed(rows), steps=1)["loss"] == pytest.approx(0.5 * 3.75)
    for row in made.predict(fed([rows[0][0]])):
        assert row["y"] == pytest.approx(0.5 * 3.75)
    assert {*seen} == {use_tpu}
