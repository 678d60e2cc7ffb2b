"""Each rule of `port`: the code before and after it returns the same numbers."""

import importlib
import pathlib
import re
import sys
import tomllib
import warnings
from collections.abc import Callable

import keras
import numpy as np
import pytest

from keras_tpu_estimator.tf1.names import catalogue
from keras_tpu_estimator.tf1.shims import installing
from keras_tpu_estimator.tf1.shims.importing import tf1_for
from keras_tpu_estimator.tf1_tools.port.command import port

# Expressions of TensorFlow 1 over `x` and `y` of shape (2, 3, 4), `m` of shape (4, 5),
# `image` of shape (1, 6, 6, 2), and integers `i` of shape (2,) below 3.
ROWS = (
    """
tf.abs(x)
tf.add(x, y, name="sum")
tf.add_n([x, y, x])
tf.argmax(x)
tf.argmax(x, 1)
tf.argmax(x, axis=-1, output_type=tf.int32)
tf.argmin(x, dimension=1)
tf.broadcast_to(x[0], [5, 3, 4])
tf.cast(x, tf.int32)
tf.cast(i, dtype=tf.float32)
tf.ceil(x)
tf.clip_by_value(x, -0.5, 0.5)
tf.concat([x, y], axis=-1)
tf.concat([x, y], 1)
tf.cond(tf.reduce_sum(x) > 100.0, lambda: x, lambda: y)
tf.constant(3.0)
tf.constant([1, 2], dtype=tf.float32)
tf.constant([1.0, 2.0, 3.0], shape=[1, 3])
tf.constant(2.0, shape=[2, 2])
tf.constant(list(range(3)), tf.float32, shape=[1, 3])
tf.convert_to_tensor([1.0, 2.0])
tf.cos(x)
tf.cumprod(x)
tf.cumsum(x, 1)
tf.div_no_nan(x, x - x)
tf.div(x, 2.0)
tf.div(tf.cast(i, tf.float32), tf.to_float(i) + 1.0)
tf.divide(x, 2.0 + tf.square(y))
tf.einsum("abc,cd->abd", x, m)
tf.equal(i, 1)
tf.erf(x)
tf.exp(x)
tf.expand_dims(x, 1)
tf.expand_dims(x, axis=[-1])
tf.expand_dims(x, dim=0)
tf.eye(3)
tf.fill([2, 3], 1.5)
tf.floor(x)
tf.floordiv(i + 5, 2)
tf.floormod(i + 5, 2)
tf.gather(x, i, axis=1)
tf.gather(m, i)
tf.gather_nd(x, tf.constant([[0, 1], [1, 2]]))
tf.batch_gather(x[:, :, 0], [[0, 2], [1, 1]])
tf.greater(x, y)
tf.greater_equal(x, y)
tf.identity(x)
tf.initializers.constant(2.0)([2, 3])
tf.is_finite(x)
tf.is_inf(x)
tf.is_nan(x)
tf.less(x, y)
tf.less_equal(x, y)
tf.linalg.matmul(x, y, transpose_b=True)
tf.log(1.0 + tf.square(x))
tf.log1p(tf.square(x))
tf.log_sigmoid(x)
tf.logical_and(x > 0.0, y > 0.0)
tf.logical_not(x > 0.0)
tf.logical_or(x > 0.0, y > 0.0)
tf.math.log(1.0 + tf.square(x))
tf.matmul(x, y, transpose_b=True)
tf.matmul(x, y, transpose_a=True)
tf.matrix_band_part(x, -1, 0)
tf.matrix_band_part(x, 0, -1)
tf.maximum(x, y)
tf.meshgrid(m[0], m[:, 1])[0]
tf.minimum(x, 0.0)
tf.mod(i + 5, 3)
tf.multiply(x, y)
tf.negative(x)
tf.norm(x)
tf.norm(x, axis=[1, 2], keepdims=True)
tf.norm(x, ord="euclidean", axis=-1)
tf.not_equal(i, 1)
tf.one_hot(i, 3)
tf.one_hot(i, depth=3, dtype=tf.float32, axis=0)
tf.ones([2, 3])
tf.ones(tf.shape(i), dtype=tf.float32)
tf.ones_like(x)
tf.pad(x, [[0, 0], [1, 2], [0, 0]])
tf.pad(x, [[0, 0], [1, 1], [0, 0]], "REFLECT")
tf.pow(tf.abs(x), 3.0)
tf.range(5)
tf.range(0, 5, dtype=tf.int32)
tf.range(0, 9, 2)
tf.rank(x)
tf.reciprocal(2.0 + tf.square(x))
tf.reduce_all(x > -1.0, axis=1)
tf.reduce_any(x > 1.0)
tf.reduce_logsumexp(x, axis=-1, keep_dims=True)
tf.reduce_max(x, reduction_indices=[1])
tf.reduce_mean(x, [0, 1], keepdims=True)
tf.reduce_mean(x)
tf.reduce_min(x, axis=0)
tf.reduce_prod(x, 2)
tf.reduce_sum(x, axis=[1, 2])
tf.reshape(x, [-1, 4])
tf.reshape(x, tf.shape(y))
tf.reverse(x, axis=[1])
tf.reverse_v2(x, [0, 2])
tf.round(x)
tf.rsqrt(1.0 + tf.square(x))
tf.scatter_nd(tf.constant([[1], [3], [1]]), m[:3], [5, 5])
tf.sequence_mask(i, 3)
tf.sequence_mask(i, maxlen=4, dtype=tf.float32)
tf.sigmoid(x)
tf.sign(x)
tf.sin(x)
tf.size(x)
tf.slice(x, [0, 1, 0], [2, 2, -1])
tf.split(x, 2, axis=2)[1]
tf.split(x, [1, 3], -1)[1]
tf.sqrt(tf.abs(x))
tf.square(x) * 2.0
tf.squared_difference(x, y)
tf.squeeze(x[:, :1, :], axis=1)
tf.squeeze(x[:, :1, :], squeeze_dims=[1])
tf.stack([x, y], axis=1)
tf.stop_gradient(x)
tf.subtract(x, y)
tf.tanh(x)
tf.tensordot(x, m, [[2], [0]])
tf.tile(x, [1, 2, 1])
tf.to_float(i)
tf.to_int32(x)
tf.transpose(x)
tf.transpose(x, perm=[1, 0, 2])
tf.truediv(x, 2.0)
tf.unstack(x, axis=1)[2]
tf.where(x > 0.0, x, y)
tf.zeros([3])
tf.zeros_like(x, dtype=tf.int32)
tf.nn.avg_pool(image, [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
tf.nn.bias_add(x, x[0, 0])
tf.nn.conv2d(image, tf.ones([3, 3, 2, 4]), strides=[1, 2, 2, 1], padding="SAME")
tf.nn.elu(x)
tf.nn.embedding_lookup(m, i)
tf.nn.in_top_k(m[:2], i, 2)
tf.nn.l2_loss(x)
tf.nn.leaky_relu(x)
tf.nn.leaky_relu(x, alpha=0.3)
tf.nn.log_softmax(x)
tf.nn.max_pool(image, ksize=[1, 3, 3, 1], strides=[1, 1, 1, 1], padding="VALID")
tf.nn.moments(x, [0, 1])[1]
tf.nn.relu(x)
tf.nn.relu6(10.0 * x)
tf.nn.selu(x)
tf.nn.sigmoid(x)
tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.sigmoid(y), logits=30.0 * x)
tf.nn.softmax(x, axis=1)
tf.nn.softmax_cross_entropy_with_logits(labels=tf.nn.softmax(y), logits=x)
tf.nn.softmax_cross_entropy_with_logits_v2(tf.nn.softmax(y), x)
tf.nn.softplus(x)
tf.nn.softsign(x)
tf.nn.sparse_softmax_cross_entropy_with_logits(labels=i, logits=m[:2])
tf.nn.swish(x)
tf.nn.tanh(x)
tf.nn.top_k(x, 2)[0]
tf.losses.absolute_difference(x, y)
tf.losses.huber_loss(x, 3.0 * y)
tf.losses.mean_squared_error(labels=x, predictions=y)
tf.losses.sigmoid_cross_entropy(tf.sigmoid(y), x)
tf.losses.softmax_cross_entropy(tf.nn.softmax(y), x)
tf.losses.softmax_cross_entropy(tf.nn.softmax(y), x, label_smoothing=0.1)
tf.losses.sparse_softmax_cross_entropy(i, m[:2])
tf.losses.sparse_softmax_cross_entropy(i, m[:2], weights=[0.0, 3.0])
tf.losses.sparse_softmax_cross_entropy(i, m[:2], tf.to_float(i) - 1.0)
tf.layers.average_pooling2d(image, 2, 2, padding="SAME")
tf.layers.average_pooling1d(x, 2, 1)
tf.layers.average_pooling3d(image[None], 1, 2, padding="SAME")
tf.layers.max_pooling1d(x, 2, 1, padding="same")
tf.layers.max_pooling3d(image[None], [1, 2, 2], 1)
tf.layers.flatten(x)
tf.layers.max_pooling2d(image, pool_size=[3, 3], strides=2, padding="same")
tf.contrib.layers.avg_pool2d(image, 2)
tf.contrib.layers.batch_norm(image, is_training=True, scope="norm")
tf.contrib.layers.conv2d(image, 4, 3, 2, scope="conv", weights_initializer=FIXED)
tf.contrib.layers.conv2d_transpose(image, 4, 3, 2, scope="a", weights_initializer=FIXED)
tf.contrib.layers.dropout(x, 0.5, is_training=False)
tf.contrib.layers.flatten(x)
tf.contrib.layers.fully_connected(x, 3, scope="full", weights_initializer=FIXED)
tf.contrib.layers.l1_regularizer(0.3)(x)
tf.contrib.layers.l2_regularizer(0.3)(x)
tf.contrib.layers.linear(x, 3, scope="linear", weights_initializer=FIXED)
tf.contrib.layers.max_pool2d(image, [3, 3], 1, padding="SAME")
tf.contrib.layers.one_hot_encoding(i, 3)
tf.contrib.layers.softmax(x)
tf.layers.batch_normalization(image, training=True)
tf.layers.conv2d(image, 4, 3, kernel_initializer=FIXED, activation=tf.nn.relu)
tf.layers.conv2d_transpose(image, 4, 3, 2, "same", kernel_initializer=FIXED)
tf.layers.dense(x, 3, tf.nn.relu, kernel_initializer=FIXED)
tf.train.cosine_decay(0.1, 3, 10, alpha=0.2)
tf.train.exponential_decay(0.1, 7, decay_steps=3, decay_rate=0.5, staircase=True)
tf.train.piecewise_constant(tf.constant(3), [3, 5], [0.1, 0.2, 0.3])
tf.train.piecewise_constant_decay(tf.constant(4), boundaries=[3], values=[0.1, 0.2])
tf.train.polynomial_decay(0.1, 3, 10, 0.0, power=2.0)
tf.nn.bias_add(x, x[0, 0]) * 2.0
tf.identity(x + 1.0) * 2.0
x - tf.nn.bias_add(x, x[0, 0])
-tf.identity(x + 1.0)
(2.0 + x) / tf.nn.l2_loss(x)
tf.identity(x + 1.0)[0]
tf.nn.bias_add(x, x[0, 0]) > tf.nn.bias_add(y, y[0, 0])
x * tf.sigmoid(x) + y
""".strip()
    .replace("FIXED", "tf.constant_initializer(0.2)")
    .splitlines()
)

# Rules whose code makes variables, random numbers or nothing. The tests of ported
# programs train with them.
_IN_PROGRAMS = re.compile(
    r"layers\.|contrib\.|initializers\.|.*_initializer|train\..*Optimizer|random_|"
    r"random\.|truncated_normal|variable_scope|name_scope|device|assign|Variable|no_op|"
    r"control_dependencies|.*_variables|ConfigProto|train\.get_|clip_by_global_norm|"
    r"summary\.|estimator\._"
)


def functions(rows: list[str]) -> str:
    lines = ["import tensorflow as tf"]
    for number, row in enumerate(rows):
        lines += [f"def row_{number}(x, y, m, image, i):", f"    return {row}"]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> tuple[pathlib.Path, str]:
    """The file of functions, and its code after `port`."""
    path = tmp_path_factory.mktemp("port") / "port_rows.py"
    path.write_text(functions(ROWS))
    program = port(path)
    assert not [m for file in program.files.values() for m in file.markers]
    return path, program.files[pathlib.Path(path.name)].code


@pytest.fixture(scope="module")
def results(sources) -> tuple[list[np.ndarray], Callable[[int], np.ndarray]]:
    """The results of all functions before, and those after by number."""
    rng = np.random.default_rng(0)
    shapes = (2, 3, 4), (2, 3, 4), (4, 5), (1, 6, 6, 2)
    arrays = [rng.normal(size=shape).astype("float32") for shape in shapes]
    arrays.append(np.array([2, 0], "int32"))
    path, new = sources[0], {}
    # Layers of `tf.layers` warn that they are deprecated.
    with warnings.catch_warnings(action="ignore"), tf1_for([path.parent]):
        installing.give_back()
        sys.path.insert(0, str(path.parent))
        old = vars(importlib.import_module(path.stem))
        sys.path.remove(str(path.parent))
        tf = old["tf"]
        with tf.Graph().as_default(), tf.Session() as session:
            tensors = [tf.constant(array) for array in arrays]
            made = [old[f"row_{n}"](*tensors) for n in range(len(ROWS))]
            made = [value() if callable(value) else value for value in made]
            session.run(tf.global_variables_initializer())
            before = session.run([tf.convert_to_tensor(value) for value in made])
    exec(sources[1], new)
    tensors = [keras.ops.convert_to_tensor(array) for array in arrays]
    return before, lambda n: np.asarray(new[f"row_{n}"](*tensors))


@pytest.mark.parametrize("number", range(len(ROWS)), ids=ROWS)
def test_numbers_are_equal(results, number) -> None:
    before, after = results[0][number], results[1](number)
    assert before.shape == after.shape
    np.testing.assert_allclose(
        after.astype("float64"), before.astype("float64"), rtol=2e-6, atol=2e-6
    )


def test_every_rule_has_a_row() -> None:
    folder = pathlib.Path(catalogue.__file__).parent
    rules = tomllib.loads((folder / "rules.toml").read_text())
    called = set(re.findall(r"\btf\.([\w.]+)", " ".join(ROWS)))
    assert not [
        name for name in rules if name not in called and not _IN_PROGRAMS.match(name)
    ]
