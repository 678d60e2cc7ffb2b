"""Tests of which constants of a trace count as weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from keras_tpu_estimator.ground.tracing.fixed_weights import fixed_weights

X = np.ones((4, 9), "float32")
KERNEL = np.ones((9, 9), "float32")
KEY = jax.random.key(0)
IMAGE = np.ones((1, 8, 8, 3), "float32")
FILTERS = jnp.ones((3, 3, 3, 4))


def found(function, *args):
    """Shapes of what is taken for a weight, and whether it is drawn."""
    traced = jax.make_jaxpr(function)(*(args or (X,)))
    return [(each.shape, each.is_random) for each in fixed_weights(traced)]


def _key_of(x):
    return jax.random.fold_in(KEY, x[0, 0].astype("uint32"))


def convolved(image, filters):
    return jax.lax.conv_general_dilated(
        image,
        filters,
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def in_kernel(x):
    def kernel(x, weight, out):
        out[...] = x[...] @ weight[...]

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(kernel, out_shape=shape)(x, KERNEL)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ KERNEL,
        lambda x: jax.jit(lambda x: jnp.tanh(x @ jnp.asarray(KERNEL)))(x),
        lambda x: KERNEL.T @ x.T,
        lambda x: x @ (KERNEL / 2).astype("bfloat16").astype("float32"),
        lambda x: jax.checkpoint(lambda x: x @ KERNEL)(x),
        lambda x: jax.nn.relu(jax.vmap(lambda row: row @ KERNEL)(x)),
        lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x @ KERNEL, lambda: x),
        lambda x: (x @ KERNEL) @ KERNEL,
        lambda x: jax.lax.fori_loop(0, 3, lambda _, x: x @ KERNEL, x),
        lambda x: jax.lax.while_loop(
            lambda x: jnp.sum(x @ KERNEL) < 9, lambda x: x + 1, x
        ),
        lambda x: in_kernel(x),
    ],
)
def test_what_is_multiplied_as_a_matrix_is_a_weight(function):
    assert found(function) == [((9, 9), False)]


def test_kernels_of_convolutions_are_weights():
    assert found(lambda x: convolved(x, FILTERS), IMAGE) == [((3, 3, 3, 4), False)]


def test_kernels_of_layers_in_a_scan_are_weights():
    stacked = np.ones((3, 9, 9), "float32")

    def layers(x):
        return jax.lax.scan(lambda x, k: (x @ k, None), x, stacked)[0]

    assert found(layers) == [((3, 9, 9), False)]
    carried = jax.make_jaxpr(
        lambda x: jax.lax.scan(
            lambda pair, _: ((pair[0] @ pair[1], pair[1]), None),
            (x, KERNEL),
            length=2,
        )[0]
    )(X)
    assert [each.shape for each in fixed_weights(carried)] == [(9, 9)]


def test_what_is_drawn_of_a_constant_key_is_a_weight():
    def init_and_apply(x):
        kernel = jax.nn.initializers.lecun_normal()(KEY, (9, 16))
        return x @ kernel + jax.random.normal(KEY, (16,))

    assert found(init_and_apply) == [((9, 16), True)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + KERNEL[:4],
        lambda x: x * KERNEL[:4],
        lambda x: jnp.asarray(KERNEL)[x[:, 0].astype("int32")],
        lambda x: x @ jax.lax.stop_gradient(KERNEL),
        lambda x: x[:, :8] @ KERNEL[:8, :8].copy(),  # 64 numbers.
        lambda x: x.astype("int32") @ KERNEL.astype("int32"),
        lambda x: x @ (KERNEL * x[0, 0]),
        lambda x: x @ jnp.tri(9),
        lambda x: x * jax.random.bernoulli(KEY, 0.5, x.shape),
        lambda x: x @ jax.random.normal(_key_of(x), (9, 9)),
        lambda x: jnp.sum(jnp.asarray(KERNEL) @ jnp.asarray(KERNEL)) * x,
        lambda x: x @ x.T,
        # Only the first state of a loop is a constant.
        lambda x: jax.lax.scan(
            lambda c, _: (c @ x[:, :4], None), np.ones((99, 4)), length=2
        )[0],
        lambda x: (
            jax.lax.scan(
                lambda c, _: (jax.random.normal(KEY, (9, 9)), None),
                KERNEL,
                length=2,
            )[0]
            * x[0, 0]
        ),
    ],
)
def test_what_is_no_weight(function):
    assert found(function) == []
