"""Programs take the place of others only if they are equal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import equal_programs

X = np.arange(3.0, dtype=np.float32)


def first_equal(function):
    return equal_programs.first_equal(jax.make_jaxpr(function)(X))


def with_rows(rows):
    return lambda x: x + jnp.asarray(rows, np.float32)


def scanned(factor):
    return lambda x: jax.lax.scan(lambda c, y: (c * factor, y), x, x)


@pytest.mark.parametrize(
    "make",
    [
        lambda factor: lambda x: x * factor,
        lambda factor: jax.jit(lambda x: x * factor),
        lambda factor: jax.grad(lambda x: jnp.sum(jax.nn.relu(x * factor))),
        lambda factor: with_rows([1, 2, factor]),
        scanned,
    ],
)
def test_constants_decide(make):
    assert first_equal(make(2.0)) is first_equal(make(2.0))
    assert first_equal(make(2.0)) is not first_equal(make(3.0))
    assert first_equal(make(0.0)) is not first_equal(make(-0.0))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x[0] - x[1], lambda x: x[1] - x[0]),
        (lambda x: (x, x + 1), lambda x: (x + 1, x)),
        (jnp.sin, jnp.cos),
        (jnp.sum, lambda x: jnp.sum(x, keepdims=True)),
        (lambda x: x.astype(bool), lambda x: x.astype(int)),
        (jax.jit(jnp.sin), lambda x: jax.lax.sin(x)),
    ],
)
def test_those_that_differ(one, other):
    assert first_equal(one) is not first_equal(other)


def test_functions_on_the_host_are_equal_to_no_other():
    def calling(function):
        return lambda x: jax.pure_callback(function, x, x)

    assert first_equal(calling(np.sin)) is not first_equal(calling(np.cos))


def test_equal_functions_are_lowered_once():
    lowered = []

    def count(event, seconds, **_):
        if event == "/jax/core/compile/jaxpr_to_mlir_module_duration":
            lowered.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        results = [jax.jit(lambda x: jnp.tanh(x) * 7.25)(X) for _ in range(3)]
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert len(lowered) == 1
    for each in results:
        np.testing.assert_allclose(each, np.tanh(X) * 7.25, rtol=1e-6)
