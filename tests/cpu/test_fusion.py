"""Values with several readers are computed once."""

import jax
import jax.numpy as jnp
import pytest

from keras_tpu_estimator.ground.cpu.fusion import once


@pytest.mark.parametrize("first", [0.0, 1.0, jnp.nan, -jnp.inf])
def test_what_is_computed_once_is_the_same(first):
    x = jnp.array([first, 2.0])
    doubled, same = jax.jit(lambda x: once(lambda x: x * 2, x))(x)
    assert jnp.array_equal(doubled, x * 2, equal_nan=True)
    assert jnp.array_equal(same, x, equal_nan=True)


def test_nothing_is_fused_over_it():
    def read(x):
        doubled, _ = once(lambda x: x * 2, x)
        return jnp.sin(doubled)

    compiled = jax.jit(read).lower(jnp.ones(8)).compile()
    assert "conditional(" in compiled.as_text()
