"""Tests that operations are rewritten in all contexts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from keras_tpu_estimator.base.cpu.rewriting import rewritten
from tests.cpu.same import assert_same, check_same, operations


def convolve(x, w):
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def network(w, x):
    """A convolution, a pool, and one number."""
    y = jax.nn.relu(convolve(x, w))
    y = lax.reduce_window(y, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return (y**2).sum()


def operands(steps=None):
    rng = np.random.default_rng(0)
    shape = (8, 6, 6, 3) if steps is None else (steps, 8, 6, 6, 3)
    w = rng.normal(size=(3, 3, 3, 3)) / 10
    return jnp.asarray(w, "float32"), jnp.asarray(rng.normal(size=shape), "f4")


def descend(w, x, loss=network):
    """One step down the gradient."""
    value, gradient = jax.value_and_grad(loss)(w, x)
    return w - 1e-3 * gradient, value


def scanned(w, x):
    return lax.scan(descend, w, x)


def while_loop(w, x):
    def step(state):
        count, w = state
        return count + 1, descend(w, x[count])[0]

    return lax.while_loop(lambda state: state[0] < 3, step, (0, w))


def branches(w, x):
    return lax.cond(w.sum() > 100, lambda w, x: (w, x.sum()), descend, w, x[0])


def recomputed(w, x):
    return descend(w, x[0], jax.checkpoint(network))


def called(w, x):
    return descend(w, x[0], jax.jit(network))


def with_own_gradient(w, x):
    @jax.custom_vjp
    def own(w, x):
        return network(w, x)

    def forward(w, x):
        return network(w, x), (w, x)

    def backward(kept, g):
        return jax.tree.map(lambda d: 2 * g * d, jax.grad(network, (0, 1))(*kept))

    own.defvjp(forward, backward)
    return own(w, x[0]), descend(w, x[0], own)


def with_own_derivative(w, x):
    @jax.custom_jvp
    def own(w):
        return network(w, x[0])

    own.defjvps(lambda tangent, _, w: 2 * jax.jvp(own, (w,), (tangent,))[1])
    return own(w)


def mapped(w, x):
    return jax.vmap(descend, in_axes=(None, 0))(w, x)


PLACES = (
    scanned,
    while_loop,
    branches,
    recomputed,
    called,
    with_own_gradient,
    with_own_derivative,
    mapped,
)


@pytest.mark.rows(5)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_operations_are_found_everywhere(place):
    args = operands(steps=3)
    assert "reduce_window_max" in operations(place, *args, tune=False)
    found = set(operations(place, *args))
    assert not found & {"reduce_window_max", "select_and_scatter_add"}
    check_same(place, *args)


def in_shards(checked):
    """Steps on eight cores that sum their gradients."""
    whole, split = PartitionSpec(), PartitionSpec(None, "core")

    def step(w, x):
        own = lax.pcast(w, "core", to="varying") if checked else w
        found = jax.value_and_grad(network)(own, x)
        value, gradient = lax.psum(found, "core")
        return w - 1e-3 * gradient, value

    return jax.shard_map(
        lambda w, x: lax.scan(step, w, x),
        mesh=Mesh(jax.devices(), "core"),
        in_specs=(whole, split),
        out_specs=whole,
        check_vma=checked,
    )


def test_operations_are_found_in_shards():
    args = operands(steps=2)
    run = in_shards(checked=False)
    assert "select_and_scatter_add" not in operations(run, *args)
    check_same(run, *args)


def test_shards_that_check_varying_axes_are_not_rewritten():
    args = operands(steps=2)
    run = in_shards(checked=True)
    assert "select_and_scatter_add" in operations(run, *args)
    check_same(run, *args, exactly=True)


def test_arguments_are_donated_and_static():
    w, x = operands()

    def step(w, x, *, times):
        return descend(w, x * times)

    expected = jax.jit(step, static_argnames="times")(w, x, times=2)
    run = jax.jit(rewritten(step, {}), donate_argnums=0, static_argnames="times")
    assert_same(expected, run(w, x, times=2), exactly=True)
    assert w.is_deleted()


def test_operations_are_found_without_compilation():
    def twice(x):
        return 2 * jnp.tan(x)

    rules = {"tan": lambda equation: lambda x: jnp.sin(x) / jnp.cos(x) + 1}
    with jax.disable_jit():
        np.testing.assert_allclose(rewritten(twice, rules)(0.0), 2.0)


def test_pytrees_keep_their_structure():
    def nested(x):
        return {"a": [x, None], "b": (x["c"] + 1,)}

    x = {"c": jnp.ones(2), "d": ()}
    assert_same(nested(x), jax.jit(rewritten(nested, {}))(x))


def test_unchanged_functions_are_returned_unchanged():
    seen = []

    def look(equation):
        seen.append(equation)

    inner = jax.jit(lambda x: jnp.sin(x) * 2)
    run = rewritten(lambda x: inner(x) + inner(x), {"sin": look})
    first, second = (
        equation.params["jaxpr"]
        for equation in jax.make_jaxpr(run)(1.0).eqns
        if equation.primitive.name == "jit"
    )
    assert first is second
    # Each trace was searched once.
    assert len(seen) == 1


def test_profiles_show_the_users_line():
    def user(x):
        return jnp.tan(x)

    rules = {"tan": lambda equation: lambda x: lax.sin(x) / lax.cos(x)}
    lowered = jax.jit(rewritten(user, rules)).lower(1.0)
    text = lowered.as_text(debug_info=True)
    assert "test_rewriting.py" in text
