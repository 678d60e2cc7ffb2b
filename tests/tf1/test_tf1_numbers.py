"""Compares the same graph in the device loop and in a TensorFlow session."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import (
    STEPS,
    assert_same,
    batches,
    classes_data,
    dense,
    estimator,
    fed,
    model_fn_of,
    run_in_session,
    trained,
    values_of,
    variable,
)


def mlp(features, is_training):
    """Two layers."""
    del is_training
    hidden = dense(features, 6, "hidden", tf.nn.relu, seed=1)
    return dense(hidden, 4, "logits", seed=2)


def decayed_adam(step):
    """Adam with a TF1 schedule."""
    return tf.train.AdamOptimizer(
        tf.train.polynomial_decay(0.05, step, STEPS, 0.01, power=2.0)
    )


class Losses(kte.hooks.SessionRunHook):
    """Collects the loss of each loop."""

    def __init__(self):
        self.all = []

    def before_run(self, run_context):
        return kte.hooks.SessionRunArgs("loss")

    def after_run(self, run_context, run_values):
        self.all.append(run_values.results)


classifier = model_fn_of(mlp, decayed_adam)


@pytest.fixture(scope="module")
def trained_classifier(tmp_path_factory):
    """A trained classifier's estimator and losses."""
    folder = tmp_path_factory.mktemp("classifier")
    made, hook = estimator(classifier, folder, iterations=1), Losses()
    made.train(fed(batches(*classes_data(5))), steps=STEPS, hooks=[hook])
    return made, hook.all


def test_classifier_with_adam_and_a_schedule(trained_classifier):
    made, received = trained_classifier
    losses, expected = run_in_session(classifier, batches(*classes_data(5)))
    np.testing.assert_allclose(received, losses, rtol=1e-5)
    values = values_of(made)
    assert_same(values, expected)
    assert sorted(values) == [
        "beta1_power",
        "beta2_power",
        "global_step",
        *(
            f"{layer}/{name}{slot}"
            for layer in ("hidden", "logits")
            for name in ("bias", "kernel")
            for slot in ("", "/Adam", "/Adam_1")
        ),
    ]


def conv_net(features, is_training):
    """A convolution with hand-written batch normalization and moving averages."""
    kernel = variable("conv/kernel", 3, 3, 2, 4)
    x = tf.nn.conv2d(features, kernel, strides=[1, 2, 2, 1], padding="SAME")
    gamma = tf.get_variable("bn/gamma", [4], initializer=tf.ones_initializer)
    beta = tf.get_variable("bn/beta", [4], initializer=tf.zeros_initializer)
    mean, variance = (
        tf.get_variable(f"bn/moving_{name}", [4], initializer=make, trainable=False)
        for name, make in (
            ("mean", tf.zeros_initializer),
            ("variance", tf.ones_initializer),
        )
    )
    if is_training:
        x, *moments = tf.nn.fused_batch_norm(x, gamma, beta, epsilon=1e-3)
        for moving, moment in zip((mean, variance), moments, strict=True):
            update = tf.assign_sub(moving, (moving - moment) * 0.1)
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    else:
        x, *_ = tf.nn.fused_batch_norm(
            x, gamma, beta, mean, variance, 1e-3, is_training=False
        )
    x = tf.nn.max_pool(tf.nn.relu(x), [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    return dense(tf.reshape(x, [x.shape[0], -1]), 4, "logits", seed=2)


def with_averages(optimizer, loss, step):
    """A train op that also updates moving averages of the variables."""
    train = optimizer.minimize(loss, step)
    average = tf.train.ExponentialMovingAverage(0.9, num_updates=step)
    with tf.control_dependencies([train]):
        return average.apply(tf.trainable_variables())


def test_batch_normalization_with_update_ops_and_averages(tmp_path):
    data = batches(*classes_data(8, 8, 2))
    model_fn = model_fn_of(
        conv_net,
        lambda step: tf.train.MomentumOptimizer(0.05, 0.9),
        with_averages,
    )
    _, expected = run_in_session(model_fn, data)
    values = trained(model_fn, tmp_path, data)
    assert_same(values, expected)
    assert "conv/kernel/ExponentialMovingAverage" in values
    assert np.abs(values["bn/moving_mean"]).max() > 0.01


def clipped(optimizer, loss, step):
    """Clips gradients like BERT's optimization.py."""
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 0.1)
    return optimizer.apply_gradients(
        zip(gradients, variables, strict=True), global_step=step
    )


def test_gradients_clipped_by_their_norm(tmp_path):
    data = batches(*classes_data(5))
    model_fn = model_fn_of(mlp, decayed_adam, clipped)
    _, expected = run_in_session(model_fn, data)
    assert_same(trained(model_fn, tmp_path, data), expected)


def recurrent(features, is_training):
    """A loop over time whose outputs are stacked by a TensorArray."""
    kernel = variable("cell/kernel", 3 + 5, 5)
    inputs = tf.transpose(features, [1, 0, 2])
    time = inputs.shape[0]

    def body(step, state, outputs):
        joined = tf.concat([inputs[step], state], axis=1)
        state = tf.tanh(tf.matmul(joined, kernel))
        return step + 1, state, outputs.write(step, state)

    _, state, outputs = tf.while_loop(
        lambda step, state, outputs: step < time,
        body,
        (
            0,
            tf.zeros([features.shape[0], 5]),
            tf.TensorArray(tf.float32, size=time),
        ),
        maximum_iterations=time,
    )
    mean = tf.reduce_mean(outputs.stack(), axis=0)
    step = tf.train.get_global_step()
    mean = tf.cond(step < STEPS // 2, lambda: mean * 2.0, lambda: mean - state)
    return dense(mean, 4, "recurrent/logits", seed=2)


def accumulated(optimizer, loss, step):
    """Sums the gradients of two steps, and applies them in a condition."""
    (kernel,) = (v for v in tf.trainable_variables() if "logits/k" in v.name)
    total = tf.get_variable(
        "total", kernel.shape, initializer=tf.zeros_initializer, trainable=False
    )
    ((gradient, _),) = optimizer.compute_gradients(loss, [kernel])
    added = tf.assign_add(total, gradient)

    def apply():
        update = optimizer.apply_gradients([(added / 2.0, kernel)])
        with tf.control_dependencies([update]):
            return tf.assign(total, tf.zeros_like(total)).op

    is_second = tf.equal(step % 2, 1)
    applied = tf.cond(is_second, apply, tf.no_op)
    with tf.control_dependencies([applied]):
        return tf.assign_add(step, 1)


def test_variables_assigned_in_a_condition(tmp_path):
    data = batches(*classes_data(5))
    model_fn = model_fn_of(
        mlp, lambda step: tf.train.GradientDescentOptimizer(0.1), accumulated
    )
    _, expected = run_in_session(model_fn, data)
    assert_same(trained(model_fn, tmp_path, data), expected)


def clipped_after_sum(optimizer, loss, step):
    """Clips the gradients that CrossShardOptimizer receives."""
    pairs = optimizer.compute_gradients(loss)
    return optimizer.apply_gradients(
        [(tf.clip_by_value(g, -5.0, 5.0), v) for g, v in pairs], step
    )


def both(features, is_training):
    """The sum of two networks."""
    return mlp(features[:, 0], is_training) + recurrent(features, is_training)


def test_loop_with_a_tensor_array_and_a_condition_on_eight_cores(tmp_path):
    data = batches(*classes_data(6, 3))
    model_fn = model_fn_of(both, decayed_adam, clipped_after_sum)
    _, expected = run_in_session(model_fn, data)
    one = trained(model_fn, tmp_path / "one", data)
    assert_same(one, expected)
    eight = trained(model_fn, tmp_path / "eight", data, use_tpu=True)
    assert_same(eight, one)


def test_evaluation_and_prediction_on_eight_cores_and_one(trained_classifier):
    x, y = classes_data(5)
    folder = trained_classifier[0].model_dir
    one, eight = (
        estimator(classifier, folder, use_tpu=use_tpu) for use_tpu in (False, True)
    )
    # The last batch has only 8 examples.
    ends = [slice(0, 16), slice(16, 32), slice(32, 40)]
    data = [(x[rows], y[rows]) for rows in ends]
    expected, results = (made.evaluate(fed(data)) for made in (one, eight))
    assert expected.keys() == {"accuracy", "logits", "loss", "global_step"}
    for name, value in expected.items():
        np.testing.assert_allclose(results[name], value, rtol=1e-5)
    rows, others = (
        list(made.predict(fed([x[:16], x[16:24]]))) for made in (one, eight)
    )
    assert len(rows) == len(others) == 24
    for a, b in zip(rows, others, strict=True):
        np.testing.assert_allclose(a["probabilities"], b["probabilities"], rtol=1e-5)
    hits = [row["classes"] == y[i] for i, row in enumerate(rows)]
    again = one.evaluate(fed([(x[:16], y[:16]), (x[16:24], y[16:24])]))
    assert again["accuracy"] == pytest.approx(np.mean(hits))


@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("reduction", ["reduce_sum", "reduce_mean"])
def test_loss_of_evaluation_is_the_mean_over_batches(reduction, use_tpu, tmp_path):
    def model_fn(features, labels, mode, params):
        w = tf.get_variable("w", [], initializer=tf.ones_initializer())
        loss = getattr(tf, reduction)(features * w)
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss)

    x = np.arange(35, dtype="float32")
    made = estimator(model_fn, tmp_path, use_tpu=use_tpu)
    result = made.evaluate(fed([x[:16], x[16:32], x[32:]]))
    # A batch of three examples runs on one core.
    cores = 8 if use_tpu and reduction == "reduce_sum" else 1
    sums = np.array([x[:16].sum() / cores, x[16:32].sum() / cores, x[32:].sum()])
    sizes = [16, 16, 3] if reduction == "reduce_mean" else 1
    np.testing.assert_allclose(result["loss"], np.mean(sums / sizes), rtol=1e-6)
