"""Tests which results of a trace differ between cores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

from keras_tpu_estimator.base.tracing.analyses import (
    are_added_to,
    fixed_weights,
    varying,
)

CORES = 4


X = np.ones((4, 9), "float32")
KERNEL = np.ones((9, 9), "float32")
KEY = jax.random.key(0)
IMAGE = np.ones((1, 8, 8, 3), "float32")
FILTERS = jnp.ones((3, 3, 3, 4))


def of(function, own=True):
    """Whether the result differs between cores, for a local or shared argument."""
    traced = jax.make_jaxpr(function, axis_env=[("batch", CORES)])(jnp.ones((CORES, 2)))
    (result,) = varying(traced, [own], ("batch",))
    return result


def mean(x):
    return lax.pmean(x, "batch")


def swapped(x):
    return lax.ppermute(x, "batch", [(i, (i + 1) % CORES) for i in range(4)])


def sum_in_kernel(x, y):
    """The sum of two arrays by a kernel with a branch and a loop."""

    def kernel(x, y, out):
        @pl.when(pl.program_id(0) == 0)
        def _():
            out[...] = x[...]

        @pl.loop(0, 2)
        def _(_):
            out[...] += y[...]

    return pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(1,)
    )(x, y)


def swapped_in_reference(x):
    """Returns the final value of a reference."""
    reference = jax.new_ref(jnp.zeros_like(x))
    reference[...] = x
    return jax.freeze(reference)


@jax.custom_vjp
def with_rule(x):
    return mean(x)


with_rule.defvjp(lambda x: (mean(x), None), lambda _, g: (g,))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: 2 * x,
        lambda x: mean(x) + x,
        lambda x: x / mean(jnp.sum(x**2)),
        lambda x: lax.axis_index("batch") + 0 * mean(x),
        lambda x: mean(x) * lax.axis_index("batch"),
        lambda x: lax.psum(x, "batch", axis_index_groups=[[0, 1], [2, 3]]),
        lambda x: lax.psum_scatter(x, "batch"),
        lambda x: lax.all_to_all(x, "batch", 0, 0),
        swapped,
        lambda x: jax.vmap(lambda row: lax.psum(row, "rows"), axis_name="rows")(x),
        jax.jit(lambda x: mean(x) - x),
        jax.checkpoint(lambda x: mean(x) - x),
        lambda x: lax.scan(lambda c, row: (row, c), mean(x[0]), x)[0],
        lambda x: lax.scan(lambda c, row: (c + row, c), x[0], mean(x))[1],
        lambda x: lax.cond(x[0, 0] > 0, mean, jnp.zeros_like, mean(x)),
        lambda x: lax.cond(mean(x)[0, 0] > 0, mean, lambda x: x, x),
        lambda x: lax.while_loop(lambda c: c[0, 0] < 9, lambda c: c + x, x),
        lambda x: lax.fori_loop(
            0, 3, lambda i, c: c + lax.axis_index("batch"), mean(x)
        ),
        # The second value reaches the first after one iteration.
        lambda x: lax.fori_loop(0, 3, lambda i, c: c[::-1], (mean(x), x))[0],
        lambda x: lax.while_loop(lambda c: c < x[0, 0], lambda c: c + 1, mean(x)[0, 0]),
        lambda x: sum_in_kernel(mean(x), x),
        lambda x: lax.custom_linear_solve(
            lambda y: lax.axis_index("batch") * y,
            mean(x),
            lambda _, b: b * 2,
            lambda _, b: b,
        ),
    ],
)
def test_results_that_differ(function):
    assert of(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.ones(3),
        mean,
        lambda x: lax.psum(x, "batch") / CORES,
        lambda x: jnp.sin(lax.pmax(x, ("batch",))),
        lambda x: lax.pmin(x, "batch"),
        lambda x: jnp.mean(lax.all_gather(x, "batch"), 0),
        lambda x: lax.psum(jnp.where(lax.axis_index("batch") == 0, x, 0), "batch"),
        lambda x: jax.vmap(mean)(x),
        jax.jit(lambda x: mean(x) * 2),
        jax.checkpoint(lambda x: jnp.sin(mean(x))),
        with_rule,
        lambda x: jax.nn.relu(mean(x)),
        lambda x: jax.grad(lambda w: jnp.sum(w * mean(x)))(1.0),
        lambda x: lax.scan(lambda c, row: (c + mean(row), c), 0.0, x[:, 0]),
        lambda x: lax.cond(mean(x)[0, 0] > 0, mean, lambda x: mean(2 * x), x),
        lambda x: lax.fori_loop(0, 3, lambda i, c: c * 2, mean(x)),
        lambda x: jnp.sort(jnp.cumsum(mean(x))),
        lambda x: lax.fori_loop(0, 3, lambda i, c: (mean(c[1]), c[1]), (mean(x), x))[0],
        lambda x: lax.while_loop(lambda c: c[0, 0] < 9, mean, mean(x)),
        lambda x: sum_in_kernel(mean(x), mean(x)),
        lambda x: swapped_in_reference(mean(x)),
    ],
)
def test_results_that_are_equal(function):
    traced = jax.make_jaxpr(function, axis_env=[("batch", CORES)])(jnp.ones((CORES, 2)))
    assert not any(varying(traced, [True], ("batch",)))


def test_function_of_equal_arguments_is_equal():
    assert not of(lambda x: jnp.sin(2 * x), own=False)
    assert of(lambda x: x * lax.axis_index("batch"), own=False)


def test_reduction_over_one_of_two_axes_differs():
    traced = jax.make_jaxpr(
        lambda x: (lax.psum(x, "a"), lax.psum(x, ("a", "b")), x),
        axis_env=[("a", 2), ("b", 2)],
    )(1.0)
    assert varying(traced, [True], ("a", "b")) == [True, False, True]
    assert varying(traced, [True], ("a",)) == [False, False, True]


def found(function, *args):
    """The shapes of detected weights, and whether they are random."""
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
def test_constant_matrices_in_products_are_weights(function):
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


def test_random_values_of_a_constant_key_are_weights():
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
def test_other_constants_are_not_weights(function):
    assert found(function) == []


@pytest.mark.parametrize(
    ("step", "is_sum"),
    [
        (lambda s, x: s + jnp.sum(x), True),
        (lambda s, x: jnp.sum(x) + s, True),
        (lambda s, x: s - x[0], True),
        (lambda s, x: jax.jit(lambda a: a.astype(s.dtype) + 1)(s), True),
        (lambda s, x: lax.scan(lambda c, v: (c + v, None), s, x)[0], True),
        (lambda s, x: lax.cond(x[0] > 0, lambda: s + 1, lambda: s), True),
        (lambda s, x: jnp.maximum(s, x[0]), False),
        (lambda s, x: x[0], False),
        (lambda s, x: s + s, False),
        (lambda s, x: s * 2, False),
        (lambda s, x: x[0] - s, False),
        (lambda s, x: s + jnp.where(s > 0, 1, 2), False),
        (lambda s, x: lax.cond(s > 0, lambda: s + 1, lambda: s), False),
        (lambda s, x: lax.scan(lambda c, v: (c * v, None), s, x)[0], False),
    ],
)
def test_states_that_are_added_to(step, is_sum):
    traced = jax.make_jaxpr(step)(jnp.float32(0), jnp.ones(3))
    assert are_added_to(traced, 1) == [is_sum]
