"""Scripts in the style of 2018, and the sessions that they ran in."""

import keras_tpu_estimator as kte  # isort: skip

import glob

import numpy as np
import tensorflow.compat.v1 as tf
from helpers import estimator_of
from tensorboard.backend.event_processing.event_file_loader import (
    EventFileLoader,
)

STEPS = 12
BATCH = 16


def weights(*shape, seed=0, scale=0.3):
    """An initializer of values that do not depend on the graph."""
    values = np.random.default_rng(seed).normal(size=shape) * scale
    return tf.constant_initializer(values.astype("float32"))


def variable(name, *shape, seed=0, **kwargs):
    """A variable with initial values that do not depend on the graph."""
    return tf.get_variable(
        name, shape, initializer=weights(*shape, seed=seed), **kwargs
    )


def dense(x, units, name, activation=None, seed=0):
    """A layer like `tf.layers.dense`, with its names."""
    with tf.variable_scope(name):
        kernel = variable("kernel", x.shape[-1], units, seed=seed)
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer)
        outputs = tf.nn.bias_add(tf.matmul(x, kernel), bias)
        return activation(outputs) if activation else outputs


def model_fn_of(network, optimizer, minimize=None):
    """A classifier with a network of (features, is_training, params).

    Args:
        network: Returns logits.
        optimizer: Returns an optimizer, given the global step.
        minimize: A function of the optimizer, the loss and the global step. Defaults to
            the optimizer's `minimize`.
    """

    def model_fn(features, labels, mode, params):
        training = mode == kte.ModeKeys.TRAIN
        logits = network(features, training)
        classes = tf.argmax(logits, axis=1, output_type=tf.int32)
        if mode == kte.ModeKeys.PREDICT:
            predictions = {
                "classes": classes,
                "probabilities": tf.nn.softmax(logits),
            }
            return kte.tf1.TPUEstimatorSpec(mode, predictions=predictions)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        if mode == kte.ModeKeys.EVAL:
            return kte.tf1.TPUEstimatorSpec(
                mode, loss=loss, eval_metrics=(metric_fn, [labels, logits])
            )
        step = tf.train.get_or_create_global_step()
        own = optimizer(step)
        if params["use_tpu"]:
            own = tf.tpu.CrossShardOptimizer(own)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            if minimize is None:
                train_op = own.minimize(loss, global_step=step)
            else:
                train_op = minimize(own, loss, step)
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def metric_fn(labels, logits):
    """Accuracy and the mean of the logits, as `tf.metrics` count them."""
    classes = tf.argmax(logits, axis=1)
    return {
        "accuracy": tf.metrics.accuracy(labels, classes),
        "logits": tf.metrics.mean(logits),
    }


def classes_data(*shape, examples=64, classes=4, seed=1):
    """Features and 64-bit labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, *shape)).astype("float32")
    return x, rng.integers(0, classes, examples)


def batches(x, y, steps=STEPS, size=BATCH):
    """The batches of a number of steps, from repeated data."""
    rows = [(np.arange(size) + step * size) % len(x) for step in range(steps)]
    return [(x[r], y[r]) for r in rows]


def fed(data):
    """An input_fn that yields these batches."""
    return lambda params: iter(data)


def estimator(model_fn, model_dir, **settings):
    """An estimator of a TF1 model_fn."""
    return estimator_of(kte.tf1.model_fn(model_fn), model_dir, batch=BATCH, **settings)


def trained(model_fn, model_dir, data, **settings):
    """The values of all variables after training in the device loop."""
    made = estimator(model_fn, model_dir, **settings)
    made.train(fed(data), steps=len(data))
    return values_of(made)


def values_of(made):
    """The values of all variables in the latest checkpoint."""
    names = made.get_variable_names()
    return dict(zip(names, made.get_variable_value(names), strict=True))


def each_by_its_own(optimizers):
    """A `minimize` by several optimizers, each for the variables in its scope.

    Args:
        optimizers: Functions of the global step, by scope.
    """

    def minimize(optimizer, loss, step):
        own = {name: [] for name in optimizers}
        for gradient, each in optimizer.compute_gradients(loss):
            own[each.op.name.partition("/")[0]].append((gradient, each))
        steps = [
            make(step).apply_gradients(own[name]) for name, make in optimizers.items()
        ]
        with tf.control_dependencies(steps):
            return tf.assign_add(step, 1)

    return minimize


def plain_session():
    """A session without graph rewriting, which would take longer."""
    config = tf.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return tf.Session(config=config)


def run_in_session(model_fn, data, mode=kte.ModeKeys.TRAIN):
    """The losses of a TF1 session, and the values of all variables."""
    graph = tf.Graph()
    with graph.as_default():
        step = tf.train.create_global_step()
        fed_to = [tf.placeholder(a.dtype, a.shape) for a in data[0]]
        spec = model_fn(*fed_to, mode, {"use_tpu": False})
        with plain_session() as session:
            session.run([tf.global_variables_initializer(), tf.tables_initializer()])
            losses = [
                session.run(
                    [spec.loss, spec.train_op],
                    dict(zip(fed_to, arrays, strict=True)),
                )[0]
                for arrays in data
            ]
            values = session.run({v.op.name: v for v in tf.global_variables()})
    assert values[step.op.name] == len(data)
    return losses, values


def assert_same(values, expected, rtol=1e-5, atol=1e-6):
    """Asserts equal names and close values."""
    assert sorted(values) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(
            values[name], value, rtol=rtol, atol=atol, err_msg=name
        )


def summaries_in(directory):
    """The content of a directory's event files, by tag and step."""
    return {
        (value.tag, event.step): tf.make_ndarray(value.tensor)
        for path in sorted(glob.glob(f"{directory}/*tfevents*"))
        for event in EventFileLoader(path).Load()
        for value in event.summary.value
    }
