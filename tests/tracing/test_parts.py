import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.experimental import io_callback

from keras_tpu_estimator.base.tracing import parts
from keras_tpu_estimator.base.tracing.parts import evaluate_by_parts

KEYS = [np.uint32([0, seed]) for seed in range(4)]


@pytest.fixture
def programs():
    """Counts the programs that a test has made, without earlier ones."""
    parts._compiled.cache_clear()
    return lambda: parts._compiled.cache_info().misses


def evaluated(function, *args, places=None):
    traced = jax.make_jaxpr(function)(*args)
    return evaluate_by_parts(traced, jax.tree.leaves(args), places)


def test_results_equal_those_of_the_complete_function(programs):
    initializers = [
        keras.initializers.GlorotUniform(seed=1),
        keras.initializers.TruncatedNormal(0.5, 0.02, seed=2),
        keras.initializers.Orthogonal(seed=3),
        keras.initializers.Constant(7.0),
        lambda shape: np.arange(9.0).reshape(shape),
    ]

    def function():
        return [jnp.asarray(initial((3, 3))) for initial in initializers]

    for got, wanted in zip(evaluated(function), jax.jit(function)(), strict=True):
        np.testing.assert_array_equal(got, wanted)
        assert (got.dtype, got.weak_type) == (wanted.dtype, wanted.weak_type)
    # Existing values need no program.
    assert programs() == 4


def test_equal_parts_share_a_program(programs):
    def function(keys):
        return [jax.random.normal(key, (2, 3)) for key in keys]

    made = evaluated(function, KEYS)
    assert len({np.asarray(each).tobytes() for each in made}) == len(KEYS)
    assert programs() == 1
    # Equal parts of another trace also share it.
    again = evaluated(function, KEYS[::-1])
    np.testing.assert_array_equal(again[::-1], made)
    assert programs() == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda key: 2.0 * jax.random.normal(key, (2, 3)),
        lambda key: 3.0 * jax.random.normal(key, (2, 4)),
        lambda key: 3.0 * jax.random.uniform(key, (2, 3)),
        lambda key: 3.0 + jax.random.normal(key, (2, 3)),
        lambda key: jax.random.normal(key, (2, 3)) / 3.0,
    ],
    ids=["number", "shape", "function", "operation", "order"],
)
def test_different_parts_have_separate_programs(programs, other):
    def function(keys):
        return 3.0 * jax.random.normal(keys[0], (2, 3)), other(keys[0])

    for got, wanted in zip(
        evaluated(function, KEYS), jax.jit(function)(KEYS), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert programs() == 2


def test_shared_intermediate_values_are_computed_once(programs):
    calls = []

    def draw():
        calls.append(None)
        return np.float32(len(calls))

    def function():
        one = io_callback(draw, jax.ShapeDtypeStruct((), np.float32))
        return one, 2 * one, one + 5, jnp.zeros(3)

    results = evaluated(function)
    np.testing.assert_array_equal(np.stack(results[:3]), [1, 2, 6])
    assert len(calls) == 1
    assert programs() == 2


def test_uncomputed_results_are_copies():
    array = jnp.arange(3.0)
    passed_on, again, number = evaluated(lambda x: (x, x, 4), array)
    pointers = {each.unsafe_buffer_pointer() for each in (array, passed_on, again)}
    assert len(pointers) == 3
    np.testing.assert_array_equal(again, array)
    assert number == 4


def test_results_share_no_memory_with_numpy_arrays():
    values = np.arange(1000.0, dtype=np.float32)
    (result,) = evaluated(lambda: jnp.asarray(values))
    values[:] = 0
    assert result.sum() == 999 * 500


def test_results_have_the_requested_sharding(programs):
    mesh = jax.sharding.Mesh(jax.devices(), "cores")
    spread = jax.NamedSharding(mesh, jax.P("cores"))
    whole = jax.NamedSharding(mesh, jax.P())

    def function(x):
        return jnp.zeros(8), jnp.zeros(8), jnp.zeros(8), x

    places = [spread, whole, spread, spread]
    results = evaluated(function, np.arange(8.0), places=places)
    assert [each.sharding for each in results] == places
    np.testing.assert_array_equal(results[-1], np.arange(8.0))
    assert programs() == 2


def test_inner_functions_and_incomparable_parameters(programs):
    table = np.arange(4.0)

    def function(x):
        def double(value):
            return jax.lax.cond(value[0] > 0, lambda v: 2 * v, jnp.sin, value)

        looked_up = jax.pure_callback(
            lambda i: table[i], jax.ShapeDtypeStruct((), x.dtype), 2
        )
        return (
            double(x),
            jax.lax.fori_loop(0, 3, lambda _, v: v + x, x),
            (looked_up),
        )

    results = evaluated(function, jnp.ones(2))
    np.testing.assert_array_equal(results[0], [2, 2])
    np.testing.assert_array_equal(results[1], [4, 4])
    assert results[2] == 2
    assert programs() == 3
