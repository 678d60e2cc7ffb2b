"""Tests that programs with a low optimization level give the same results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from keras_tpu_estimator.base.cpu.quick_compiling import quick_options
from keras_tpu_estimator.base.cpu.tuning import tuned
from tests.cpu.same import check_same, operations

WELL = {"xla_backend_optimization_level": 3}


@pytest.mark.parametrize(
    "draw",
    [jax.random.normal, jax.random.uniform, jax.random.truncated_normal],
)
def test_initial_values_are_the_same(draw, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")

    def initial():
        bounds = () if draw is not jax.random.truncated_normal else (-2.0, 2.0)
        return draw(jax.random.key(3), *bounds, shape=(65, 33)) * jnp.sqrt(0.3)

    quick, well = (
        jax.jit(initial, compiler_options=options)()
        for options in (quick_options("cpu"), WELL)
    )
    np.testing.assert_array_equal(quick, well)


def test_other_platforms_compile_as_before(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")
    assert quick_options("gpu") == {}


def test_given_level_is_kept(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    assert quick_options("cpu") == {}


def loss(weights, inputs):
    return jnp.sum(jnp.sin(jnp.matmul(inputs, weights)))


def operands(*shape, width=5, dtype="float32"):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(shape[-1], width)) / shape[-1]
    return jnp.asarray(weights, dtype), jnp.asarray(rng.normal(size=shape), dtype)


def is_rewritten(function, *args):
    return "optimization_barrier" in operations(function, *args)


@pytest.mark.rows(3)
@pytest.mark.parametrize(
    "shape", [(8, 3), (64, 32), (1024, 4), (4, 2, 3), (2, 3, 4, 5), (100, 1)]
)
def test_gradients_of_weights(shape):
    args = operands(*shape)
    assert is_rewritten(jax.grad(loss), *args)
    check_same(jax.grad(loss), *args)
    check_same(jax.jacfwd(jax.grad(loss)), *operands(8, 2, width=2))


def test_in_a_loop():
    weights, inputs = operands(3, 16, 4)

    def step(weights, inputs):
        return weights - 0.1 * jax.grad(loss)(weights, inputs), weights.sum()

    def train(weights, inputs):
        return lax.scan(step, weights, inputs)

    assert is_rewritten(train, weights, inputs)
    check_same(train, weights, inputs)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((7, 3), "float32"),  # Few examples.
        ((1025, 3), "float32"),  # Many.
        ((512, 513), "float32"),  # Many inputs.
        ((64, 3), "bfloat16"),
        ((3,), "float32"),  # One example.
    ],
)
def test_products_that_rewriting_would_slow_down_are_not_rewritten(shape, dtype):
    args = operands(*shape, dtype=dtype)
    assert not is_rewritten(jax.grad(loss), *args)


@pytest.mark.parametrize(
    ("dimensions", "left", "right"),
    [
        ((((1,), (0,)), ((), ())), (16, 8), (8, 4)),
        ((((1,), (1,)), ((), ())), (16, 8), (4, 8)),
        ((((0,), (1,)), ((), ())), (8, 4), (16, 8)),
        ((((0,), (0,)), ((), ())), (8,), (8, 4)),
        ((((0,), (0,)), ((), ())), (8, 3, 2), (8, 4)),
        ((((1,), (1,)), ((0,), (0,))), (2, 8, 3), (2, 8, 4)),
    ],
)
def test_other_products_are_not_rewritten(dimensions, left, right):
    def function(left, right):
        return lax.dot_general(left, right, dimensions)

    args = jnp.ones(left), jnp.ones(right)
    assert not is_rewritten(function, *args)


def test_precision_and_dtype_are_as_requested():
    def function(left, right):
        return lax.dot_general(
            left,
            right,
            (((0,), (0,)), ((), ())),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float64,
        )

    with jax.enable_x64(True):
        args = jnp.ones((16, 3), "float32"), jnp.ones((16, 2), "float32")
        check_same(function, *args)
        assert "HIGHEST" in jax.jit(function).lower(*args).as_text()


def test_only_counters_are_behind_a_barrier():
    found = [
        equation.invars[0].aval.dtype
        for equation in jax.make_jaxpr(tuned(lambda *args: args))(
            jnp.int32(1), 1.0, jnp.ones(2, "int32")
        ).eqns
        if equation.primitive.name == "optimization_barrier"
    ]
    assert found == ["int32"]
