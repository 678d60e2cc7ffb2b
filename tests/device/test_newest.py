"""Tests the scan that does not stack everything."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_tpu_estimator.engine.device.run_state import (
    StepValues,
    scan_with_newest,
)


def step(state, x):
    """Adds to the state, and returns an image of the previous state."""
    return state + x, {"sum": state + x}, {"image": state * jnp.ones((2, 3))}


def span_of(start, stop):
    return np.array([start, stop], "int32")


@pytest.mark.parametrize("span", [(0, 5), (0, 1), (2, 4), (4, 5)])
def test_one_program_runs_any_number_of_steps(span):
    run = jax.jit(lambda state, xs, span: scan_with_newest(step, state, xs, span))
    xs = np.arange(5, dtype="float32")
    for start, stop in ((0, 5), span):
        state, stacked, newest = run(np.float32(1), xs, span_of(start, stop))
        sums = 1 + np.cumsum(xs[start:stop])
        assert state == sums[-1]
        np.testing.assert_array_equal(stacked["sum"][start:stop], sums)
        assert not stacked["sum"][:start].any()
        assert not stacked["sum"][stop:].any()
        assert newest["image"][0, 0] == [1, *sums][-2]
    assert run._cache_size() == 1


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_scan_stacks_or_keeps_outputs(steps, transform):
    state, stacked, newest = transform(
        lambda state, xs, span: scan_with_newest(step, state, xs, span)
    )(jnp.float32(1), jnp.arange(steps, dtype="float32"), span_of(0, steps))
    sums = 1 + np.cumsum(np.arange(steps))
    assert state == sums[-1]
    np.testing.assert_array_equal(stacked["sum"], sums)
    before = ([1, *sums])[-2]
    np.testing.assert_array_equal(newest["image"], np.full((2, 3), before))


def test_step_is_traced_once():
    traced = []

    def counted(state, x):
        traced.append(x)
        return step(state, x)

    jax.jit(lambda *args: scan_with_newest(counted, jnp.float32(1), *args))(
        jnp.arange(4, dtype="float32"), span_of(0, 4)
    )
    assert len(traced) == 1


def test_kept_outputs_are_not_stacked():
    lowered = jax.jit(
        lambda *args: scan_with_newest(step, jnp.float32(1), *args)
    ).lower(jnp.arange(100, dtype="float32"), span_of(0, 100))
    assert "100x2x3" not in lowered.as_text()
    assert "tensor<100xf32>" in lowered.as_text()


def test_step_values_have_only_the_rows_of_their_steps():
    values = StepValues(np.array([0, 1, 2, 0]), range(1, 3))
    assert len(values) == 2
    assert np.asarray(values).tolist() == [1, 2]
