"""Quickly compiled code gives the numbers of optimized code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_tpu_estimator.ground.cpu.compiling import quickly

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
        for options in (quickly("cpu"), WELL)
    )
    np.testing.assert_array_equal(quick, well)


def test_other_platforms_compile_as_ever(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")
    assert quickly("gpu") == {}


def test_a_level_that_is_given_stays(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    assert quickly("cpu") == {}
