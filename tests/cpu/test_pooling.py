"""Tests that rewritten pooling on a CPU gives XLA's results, also for ties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import each_once
from jax import lax

from keras_tpu_estimator.base.cpu.pooling import compute_once
from tests.cpu.same import check_same, operations

KINDS = {
    "max": (lax.max, -np.inf),
    "min": (lax.min, np.inf),
    "sum": (lax.add, 0.0),
}


def pooling(kind="max", window=2, stride=2, padding="VALID", rank=2, **options):
    """Pooling of arrays with the features on the last axis."""
    operator, start = KINDS[kind]
    size = window if isinstance(window, tuple) else (window,) * rank
    strides = stride if isinstance(stride, tuple) else (stride,) * rank
    if not isinstance(padding, str):
        padding = [(0, 0), *padding, (0, 0)]

    def pool(x):
        return lax.reduce_window(
            x,
            np.asarray(start, x.dtype)[()],
            operator,
            (1, *size, 1),
            (1, *strides, 1),
            padding,
            **options,
        )

    return pool


def with_gradient(pool):
    """The result, and the gradient for integers of all sizes."""

    def run(x):
        y, pull = jax.vjp(pool, x)
        factors = (jnp.arange(y.size) * 7 % 31 - 15) * 1.25
        return y, pull(factors.astype(y.dtype).reshape(y.shape))

    return run


def tied(*shape, dtype="float32"):
    """An array of few different numbers and infinities."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, shape).astype("float32")
    x[0] = -np.inf
    x[1, 0] = np.inf
    return jnp.asarray(x, dtype)


@pytest.mark.rows(4)
@pytest.mark.parametrize(
    ("window", "stride", "padding"),
    [
        *each_once([2], [1, 2, 3], ["SAME", "VALID"]),
        *each_once([3], [1, 2, 3], ["VALID", "SAME"]),
    ],
)
def test_maxima_and_gradients_are_equal(window, stride, padding):
    pool = pooling("max", window, stride, padding)
    check_same(with_gradient(pool), tied(3, 8, 7, 4), exactly=True)


def test_minima_and_gradients_are_equal():
    pool = pooling("min", 3, 2, "SAME")
    check_same(with_gradient(pool), tied(3, 8, 7, 4), exactly=True)


@pytest.mark.parametrize(
    ("window", "stride", "padding"),
    [
        *each_once([2], [1, 2], ["SAME", "VALID"]),
        *each_once([3], [1, 2], ["VALID", "SAME"]),
    ],
)
def test_sums_and_gradients_are_the_same(window, stride, padding):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8, 7, 4)), "f4")
    check_same(with_gradient(pooling("sum", window, stride, padding)), x)


@pytest.mark.rows(3)
@pytest.mark.parametrize(
    ("rank", "options"),
    [
        (1, {"window": 3, "stride": 2, "padding": "SAME"}),
        (2, {"window": (3, 1), "stride": (1, 2)}),
        (2, {"window": 3, "stride": 2, "padding": [(2, 2), (0, 2)]}),
        (3, {"window": 2, "stride": 2, "padding": "SAME"}),
        (3, {"window": 3, "stride": 2, "padding": "SAME"}),
    ],
)
def test_windows_of_any_rank_are_equal(rank, options):
    x = tied(3, *(7, 6, 5)[:rank], 4)
    check_same(with_gradient(pooling(rank=rank, **options)), x, exactly=True)


@pytest.mark.parametrize("kind", KINDS)
def test_dilated_windows_are_equal(kind):
    pool = pooling(
        kind,
        stride=1,
        window_dilation=(1, 2, 2, 1),
        base_dilation=(1, 2, 1, 1),
    )
    check_same(pool, tied(3, 8, 7, 4)[2:], exactly=True)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_nan_is_equal(kind):
    x = tied(3, 8, 8, 4).at[0, ::3, ::3].set(jnp.nan)
    check_same(with_gradient(pooling(kind)), x, exactly=True)
    check_same(with_gradient(pooling(kind, 3, 2, "SAME")), x, exactly=True)


def test_empty_arrays_are_equal():
    check_same(with_gradient(pooling()), jnp.ones((0, 4, 4, 1)), exactly=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_equal_without_sums(dtype):
    x = tied(3, 8, 8, 4, dtype=dtype)
    check_same(with_gradient(pooling()), x, exactly=True)


def test_doubles_are_equal():
    with jax.enable_x64(True):
        x = tied(3, 8, 7, 4, dtype="float64")
        check_same(with_gradient(pooling("max", 3, 2, "SAME")), x, exactly=True)


def test_gradients_of_gradients_are_equal():
    def length(x):
        return (with_gradient(pooling("max", 3, 2))(x)[1][0] ** 2 * x).sum()

    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8, 7, 4)), "f4")
    check_same(jax.grad(length), x)


def test_the_gradient_is_rewritten():
    x = jnp.ones((1, 4, 4, 1))
    run = with_gradient(pooling())
    assert "select_and_scatter_add" in operations(run, x, tune=False)
    assert "select_and_scatter_add" not in operations(run, x)


@pytest.mark.parametrize(("window", "dtype"), [((9, 8), "float32"), ((2, 2), "int32")])
def test_large_windows_and_integers_are_not_rewritten(window, dtype):
    x = jnp.ones((1, 12, 12, 1), dtype)

    def pool(x):
        return lax.reduce_window(
            x,
            0 if dtype == "int32" else 0.0,
            lax.add,
            (1, *window, 1),
            (1,) * 4,
            "VALID",
        )

    assert "reduce_window_sum" in operations(pool, x)


@pytest.mark.parametrize("first", [0.0, 1.0, jnp.nan, -jnp.inf])
def test_shared_results_are_the_same(first):
    x = jnp.array([first, 2.0])
    doubled, same = jax.jit(lambda x: compute_once(lambda x: x * 2, x))(x)
    assert jnp.array_equal(doubled, x * 2, equal_nan=True)
    assert jnp.array_equal(same, x, equal_nan=True)


def test_pooling_is_not_fused_with_other_operations():
    def read(x):
        doubled, _ = compute_once(lambda x: x * 2, x)
        return jnp.sin(doubled)

    compiled = jax.jit(read).lower(jnp.ones(8)).compile()
    assert "conditional(" in compiled.as_text()
