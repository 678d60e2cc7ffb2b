"""Ported layers of `tf.contrib.layers` and slim, and their `arg_scope`s."""

import pathlib
import textwrap

import pytest

from keras_tpu_estimator.__main__ import main
from keras_tpu_estimator.tf1_tools.port.command import port

HEAD = "def model_fn(features, labels, mode, params):\n"


def ported(folder: pathlib.Path, body: str) -> str:
    path = folder / "program.py"
    imports = "import tensorflow as tf\n\nslim = tf.contrib.slim\n\n\n"
    path.write_text(imports + HEAD + textwrap.indent(body, "    ") + "\n")
    code = port(path).files[pathlib.Path("program.py")].code
    return textwrap.dedent(code.partition(HEAD)[2]).rstrip()


# Bodies of a `model_fn` before and after.
BODIES = {
    "dense": (
        "return slim.fully_connected(x, 10, scope='out')",
        "return layers.Dense(10, activation=\"relu\", name='out')(x)",
    ),
    "dense without a name": (
        "return tf.contrib.layers.fully_connected(x, 10, activation_fn=None)",
        "return layers.Dense(\n"
        '    10, activation=None, name=kte.unique_name("fully_connected")\n'
        ")(x)",
    ),
    "a linear layer": (
        "return tf.contrib.layers.linear(x, 10, scope=params)",
        "return layers.Dense(\n"
        '    10, activation=None, name=params or kte.unique_name("fully_connected")\n'
        ")(x)",
    ),
    "no bias": (
        "return slim.conv2d(x, 4, 3, biases_initializer=None, scope='a')",
        "return layers.Conv2D(\n"
        '    4, 3, padding="same", activation="relu", use_bias=False, '
        "name='a'\n"
        ")(x)",
    ),
    "convolution": (
        "return slim.conv2d(x, 4, [3, 3], 2, 'VALID', rate=1,\n"
        "                   weights_initializer=slim.xavier_initializer(),\n"
        "                   biases_initializer=tf.zeros_initializer(), scope='a')",
        "return layers.Conv2D(\n"
        "    4,\n"
        "    [3, 3],\n"
        "    strides=2,\n"
        "    padding='valid',\n"
        "    dilation_rate=1,\n"
        '    activation="relu",\n'
        "    kernel_initializer=keras.initializers.GlorotUniform(),\n"
        '    bias_initializer="zeros",\n'
        "    name='a',\n"
        ")(x)",
    ),
    "batch normalization": (
        "return slim.batch_norm(x, 0.9, is_training=params, scope='n')",
        "return kte.BatchNormalization(\n"
        "    momentum=0.9, scale=False, name='n', fused=True\n"
        ")(x, training=params)",
    ),
    "other layers": (
        "x = slim.max_pool2d(x, 2, scope='pool')\n"
        "x = slim.avg_pool2d(x, [2, 2], 1, padding='SAME')\n"
        "return slim.dropout(slim.flatten(x), 0.8, is_training=params)",
        "x = layers.MaxPooling2D(2, 2)(x)\n"
        "x = layers.AveragePooling2D([2, 2], 1, padding='same')(x)\n"
        "return layers.Dropout(0.2)(layers.Flatten()(x), training=params)",
    ),
    "regularizers": (
        "return slim.l2_regularizer(0.01)(x), slim.l1_regularizer(params)(x)",
        "return keras.regularizers.L2(0.005)(x), keras.regularizers.L1(params)(x)",
    ),
    "a scope of arguments": (
        "with slim.arg_scope([slim.conv2d, slim.fully_connected],\n"
        "                    activation_fn=tf.nn.elu):\n"
        "    with slim.arg_scope([slim.conv2d], padding='VALID', stride=2):\n"
        "        # The first.\n"
        "        x = slim.conv2d(x, 4, 3, scope='a')\n"
        "        x = slim.conv2d(x, 4, 3, stride=1, padding='SAME', scope='b')\n"
        "    return slim.fully_connected(x, 2, activation_fn=None, scope='c')",
        "# The first.\n"
        "x = layers.Conv2D(\n"
        "    4, 3, strides=2, padding='valid', activation=\"elu\", name='a'\n"
        ")(x)\n"
        "x = layers.Conv2D(\n"
        "    4, 3, strides=1, padding='same', activation=\"elu\", name='b'\n"
        ")(x)\n"
        "return layers.Dense(2, activation=None, name='c')(x)",
    ),
}


@pytest.mark.parametrize(("before", "after"), BODIES.values(), ids=BODIES)
def test_layers_are_rewritten(tmp_path, before: str, after: str) -> None:
    assert ported(tmp_path, before) == after


# Bodies that are not certain, and a word of the advice.
MARKED = {
    "return slim.conv2d(x, 4, 3, normalizer_fn=slim.batch_norm)": "normalizer_fn",
    "return slim.conv2d(x, 4, 3, scope='a/b')": "kte.variable_scope",
    "return slim.conv2d(x, 4, 3, biases_initializer=params)": "use_bias=False",
    "return slim.conv2d(x, 4, 3, data_format=params)": "data_format",
    "return slim.fully_connected(x, 4, reuse=True)": "reuse",
    "return slim.fully_connected(x, 4, weights_regularizer=params)": "regularizer",
    "with slim.arg_scope(params.scope()):\n    return slim.conv2d(x, 4, 3)": "pass the "
    "arguments of each `arg_scope`",
    "with slim.arg_scope([slim.conv2d], stride=2) as scope:\n    return scope": "pass "
    "the arguments",
    "with slim.arg_scope([slim.conv2d], stride=params):\n    params = 2\n"
    "    return slim.conv2d(x, 4, 3)": "pass `params` with the call",
    "with slim.arg_scope([slim.conv2d],\n"
    "                    weights_regularizer=slim.l2_regularizer(0.1)):\n"
    "    return slim.conv2d(x, 4, 3)": "add the losses of its regularizers",
}


@pytest.mark.parametrize(("body", "advice"), MARKED.items(), ids=MARKED)
def test_uncertain_layers_are_marked(tmp_path, body: str, advice: str) -> None:
    comments = [
        line.strip().removeprefix("#").strip()
        for line in ported(tmp_path, body).splitlines()
        if line.strip().startswith("#")
    ]
    assert advice in " ".join(comments)


def test_scopes_of_callers_are_marked(tmp_path) -> None:
    """A function that a scope's block calls receives the arguments of the scope."""
    body = (
        "def block(x):\n"
        "    return slim.conv2d(x, 4, 3)\n\n\n"
        "def other(x):\n"
        "    return slim.conv2d(x, 4, 3)\n\n\n"
        "with slim.arg_scope([slim.conv2d], stride=2):\n"
        "    x = block(x)\n"
        "return other(x)"
    )
    code = ported(tmp_path, body)
    assert "an `arg_scope` of its callers" in " ".join(code.split())
    assert code.count("slim.conv2d(x, 4, 3)") == 1
    assert code.count("layers.Conv2D(") == 1


def test_scopes_that_are_returned_are_marked(tmp_path) -> None:
    """Any caller may open them around other functions."""
    body = (
        "def scope_of():\n"
        "    with slim.arg_scope([slim.conv2d], stride=2):\n"
        "        with slim.arg_scope([slim.max_pool2d], stride=2) as scope:\n"
        "            return scope\n\n\n"
        "y = slim.conv2d(x, 4, 3)\n"
        "return slim.flatten(y)"
    )
    code = ported(tmp_path, body)
    assert "y = slim.conv2d(x, 4, 3)" in code
    assert "return layers.Flatten()(y)" in code
    assert "an `arg_scope` of its callers" in " ".join(code.split())


def test_other_calls_do_not_depend_on_scopes(tmp_path) -> None:
    body = "with slim.arg_scope(params):\n    return tf.square(x)"
    assert "return ops.square(x)" in ported(tmp_path, body)


PROGRAM = """
import numpy as np
import tensorflow as tf

slim = tf.contrib.slim


def network(images, is_training):
    with slim.arg_scope(
        [slim.conv2d, slim.fully_connected],
        activation_fn=tf.nn.elu,
        weights_initializer=tf.truncated_normal_initializer(stddev=0.1),
    ):
        with slim.arg_scope([slim.conv2d], padding="VALID"):
            net = slim.conv2d(images, 4, [3, 3], scope="conv1")
            net = slim.max_pool2d(net, [2, 2], scope="pool1")
            net = slim.conv2d(net, 8, 3, padding="SAME", biases_initializer=None)
        net = slim.batch_norm(net, is_training=is_training, decay=0.9)
        net = slim.flatten(net)
        net = slim.fully_connected(net, 16)
        net = slim.batch_norm(net, is_training=is_training, decay=0.9, scale=True)
        net = slim.dropout(net, 0.9, is_training=is_training)
        return slim.fully_connected(net, 3, activation_fn=None, scope="logits")


def model_fn(features, labels, mode, params):
    logits = network(features, mode == tf.estimator.ModeKeys.TRAIN)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    loss += 0.01 * tf.add_n(
        [slim.l2_regularizer(0.5)(v) for v in tf.trainable_variables()]
    )
    optimizer = tf.contrib.tpu.CrossShardOptimizer(tf.train.AdamOptimizer(0.01))
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(params):
    rng = np.random.RandomState(0)
    x = rng.normal(size=[64, 8, 8, 2]).astype(np.float32)
    y = rng.randint(3, size=[64]).astype(np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True)


def main(_):
    config = tf.contrib.tpu.RunConfig(tf_random_seed=1)
    estimator = tf.contrib.tpu.TPUEstimator(
        model_fn, config=config, use_tpu=True, train_batch_size=16, eval_batch_size=16
    )
    estimator.train(input_fn, max_steps=4)
    estimator.evaluate(input_fn, steps=2)


if __name__ == "__main__":
    tf.app.run()
"""


@pytest.mark.slow
def test_port_of_slim_is_proved(tmp_path, capsys) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    status = main(["port", str(path), "--to", str(tmp_path / "new"), "--prove"])
    output = capsys.readouterr().out
    assert "are one" in output, output
    assert status == 0
