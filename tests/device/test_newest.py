"""The scan that does not stack everything."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_tpu_estimator.engine.device.scan import scan_with_newest


def step(state, x):
    """Adds; the image is of the state before."""
    return state + x, {"sum": state + x}, {"image": state * jnp.ones((2, 3))}


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_it_stacks_and_keeps(steps, transform):
    state, stacked, newest = transform(
        lambda state, xs: scan_with_newest(step, state, xs)
    )(jnp.float32(1), jnp.arange(steps, dtype="float32"))
    sums = 1 + np.cumsum(np.arange(steps))
    assert state == sums[-1]
    np.testing.assert_array_equal(stacked["sum"], sums)
    before = ([1, *sums])[-2]
    np.testing.assert_array_equal(newest["image"], np.full((2, 3), before))


def test_the_step_is_traced_once():
    traced = []

    def counted(state, x):
        traced.append(x)
        return step(state, x)

    jax.jit(lambda xs: scan_with_newest(counted, jnp.float32(1), xs))(
        jnp.arange(4, dtype="float32")
    )
    assert len(traced) == 1


def test_nothing_is_stacked_that_is_kept():
    lowered = jax.jit(
        lambda xs: scan_with_newest(step, jnp.float32(1), xs)
    ).lower(jnp.arange(100, dtype="float32"))
    assert "100x2x3" not in lowered.as_text()
    assert "tensor<100xf32>" in lowered.as_text()
