"""Tests that window operations are read from modules in every form."""

import keras_tpu_estimator  # isort: skip  # noqa: F401

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_modules import hlo_of, primitive_of

from keras_tpu_estimator.base.cpu.tuning import tuned
from keras_tpu_estimator.tf1.lift import jax_internals, primitive
from keras_tpu_estimator.tf1.lift.lifting import Pruned
from keras_tpu_estimator.tf1.lift.primitive import windowed
from tests.cpu.same import assert_same

WINDOWED = (
    "stablehlo.convolution",
    "stablehlo.reduce_window",
    "stablehlo.select_and_scatter",
)
SAME, VALID = "SAME", "VALID"


def conv_1d(x, w):
    return tf.nn.conv1d(x, w, 2, SAME)


def conv_2d(x, w):
    return tf.nn.conv2d(x, w, [1, 2, 1, 1], VALID)


def channels_first(x, w):
    y = tf.nn.conv2d(x, w, [1, 1, 2, 1], SAME, data_format="NCHW")
    y = tf.nn.max_pool2d(y, 3, 2, SAME, data_format="NCHW")
    return tf.nn.avg_pool2d(y, 2, 1, VALID, data_format="NCHW")


def explicitly_padded(x, w):
    padding = [[0, 0], [2, 1], [0, 3], [0, 0]]
    return tf.nn.conv2d(x, w, [1, 2, 2, 1], padding)


def dilated(x, w):
    return tf.nn.conv2d(x, w, 1, SAME, dilations=2)


def grouped(x, w):
    return tf.nn.conv2d(x, w, 1, SAME)


def depthwise(x, w):
    return tf.nn.depthwise_conv2d(x, w, [1, 2, 2, 1], SAME)


def separable(x, w, v):
    return tf.nn.separable_conv2d(x, w, v, [1, 1, 1, 1], VALID)


def transposed(x, w):
    return tf.nn.conv2d_transpose(x, w, [2, 8, 8, 2], 2, SAME)


def conv_3d(x, w):
    y = tf.nn.conv3d(x, w, [1, 1, 2, 1, 1], SAME)
    return tf.nn.avg_pool3d(tf.nn.max_pool3d(y, 2, 1, SAME), 2, 1, SAME)


def pools(x):
    y = tf.nn.max_pool2d(x, [3, 2], [2, 1], SAME)
    return tf.nn.avg_pool2d(y, 3, 2, SAME)


FORMS = {
    conv_1d: [(2, 9, 3), (3, 3, 4)],
    conv_2d: [(2, 8, 9, 3), (3, 2, 3, 4)],
    channels_first: [(2, 3, 8, 9), (3, 3, 3, 4)],
    explicitly_padded: [(2, 7, 7, 3), (3, 3, 3, 4)],
    dilated: [(2, 8, 8, 3), (3, 3, 3, 4)],
    grouped: [(2, 6, 6, 4), (3, 3, 2, 6)],
    depthwise: [(2, 8, 8, 3), (3, 3, 3, 2)],
    separable: [(2, 6, 6, 3), (3, 3, 3, 1), (1, 1, 3, 4)],
    transposed: [(2, 4, 4, 3), (3, 3, 2, 3)],
    conv_3d: [(2, 4, 4, 4, 2), (2, 3, 2, 2, 3)],
    pools: [(2, 9, 8, 3)],
}


def module_of(form, shapes, dtype=tf.float32):
    """The module of a form and its gradients."""

    def run(*args):
        y = form(*args)
        factors = tf.cast(tf.range(tf.size(y)) % 7 - 3, y.dtype)
        total = tf.reduce_sum(y * tf.reshape(factors, y.shape))
        return y, *tf.gradients(total, args)

    return jax_internals.stablehlo_of(hlo_of(run, *shapes, dtype=dtype))


def results_of(module, args, replacement):
    _, kinds = jax_internals.signature_of(module)
    avals = [jax_internals.aval_of(kind) for kind in kinds]
    inlined = primitive_of(module, avals, replacement)
    return jax.jit(lambda *args: inlined.bind(*args))(*args)


def by_jax(op, done):
    """The replacement of an operation, if one exists; its name is recorded."""
    function = windowed(op)
    if function is None:
        return None
    done.append(op.name)
    return tuned(function)


@pytest.mark.parametrize("form", FORMS)
def test_jax_replacements_of_window_operations_match(form):
    module = module_of(form, FORMS[form])
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s).astype("float32") for s in FORMS[form]]
    done = []
    expected = results_of(module, args, lambda op: None)
    received = results_of(module, args, lambda op: by_jax(op, done))
    assert_same(expected, received)
    assert done == windows_in(module) != []


def windows_in(module):
    return [name for name in jax_internals.op_names(module) if name in WINDOWED]


def test_narrow_floats_have_the_same_types():
    module = module_of(depthwise, FORMS[depthwise], tf.bfloat16)
    args = [jnp.ones(shape, "bfloat16") for shape in FORMS[depthwise]]
    done = []
    received = results_of(module, args, lambda op: by_jax(op, done))
    assert_same(results_of(module, args, lambda op: None), received)
    assert done == ["stablehlo.convolution"] * 3


def of_integers(x):
    return tf.nn.max_pool2d(tf.cast(x, tf.int32), 2, 2, SAME)


def of_64_bits(x):
    return tf.nn.max_pool2d(tf.cast(x, tf.float64), 2, 2, SAME)


def products(x):
    return tf.math.cumprod(x, 1)


@pytest.mark.parametrize("form", [of_integers, of_64_bits, products])
def test_operations_without_a_replacement_stay(form):
    module = jax_internals.stablehlo_of(hlo_of(form, (2, 4, 4, 2)))
    done = []
    x = np.ones((2, 4, 4, 2), "float32")
    results_of(module, [x], lambda op: by_jax(op, done))
    assert done == [] != windows_in(module)


@pytest.mark.parametrize(("platform", "count"), [("cpu", 0), ("tpu", 1)])
def test_step_is_rewritten_only_for_cpus(platform, count):
    with tf.Graph().as_default() as graph:
        x = tf.placeholder("float32", [2, 4, 4, 1])
        (y,) = tf.gradients(tf.nn.max_pool2d(x, 2, 2, SAME), x)
    converted = Pruned.from_graph(graph, [x], [y]).compiled()

    def run(x):
        key = jnp.zeros(2, "uint32")
        return primitive.run(converted, key, [x], axes=())

    traced = jax.jit(run).trace(np.ones((2, 4, 4, 1), "float32"))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count('"stablehlo.select_and_scatter"') == count
