"""Tests of which results of a trace differ between cores."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl

from keras_tpu_estimator.ground.tracing.varying import varying

CORES = 4


def of(function, own=True):
    """Whether the result differs, for one argument, of each core or of all."""
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
        # The second value reaches the first after one round.
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


def test_a_function_of_equal_arguments_is_equal():
    assert not of(lambda x: jnp.sin(2 * x), own=False)
    assert of(lambda x: x * lax.axis_index("batch"), own=False)


def test_a_reduction_over_one_of_two_axes_differs():
    traced = jax.make_jaxpr(
        lambda x: (lax.psum(x, "a"), lax.psum(x, ("a", "b")), x),
        axis_env=[("a", 2), ("b", 2)],
    )(1.0)
    assert varying(traced, [True], ("a", "b")) == [True, False, True]
    assert varying(traced, [True], ("a",)) == [False, False, True]
