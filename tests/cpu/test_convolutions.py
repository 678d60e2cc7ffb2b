"""Tests that rewritten convolutions on a CPU give the same results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.cpu.same import check_same, operations

SIZES = {1: (9,), 2: (9, 8), 3: (5, 6, 4)}


def orders(rank, channels_first=False):
    space = "DHW"[-rank:]
    if channels_first:
        return f"NC{space}", f"OI{space}", f"NC{space}"
    return f"N{space}C", f"{space}IO", f"N{space}C"


def case(
    rank=2,
    window=3,
    features=(6, 6),
    dtype="float32",
    channels_first=False,
    size=None,
    **options,
):
    """A convolution and its operands."""
    rng = np.random.default_rng(0)
    groups = options.get("feature_group_count", 1)
    x = rng.normal(size=(3, *(size or SIZES[rank]), features[0]))
    w = rng.normal(size=(*[window] * rank, features[0] // groups, features[1]))
    if channels_first:
        x = np.moveaxis(x, -1, 1)
        w = np.moveaxis(w, (-1, -2), (0, 1))
    settings = {
        "window_strides": (1,) * rank,
        "padding": "SAME",
        "dimension_numbers": orders(rank, channels_first),
        **options,
    }

    def convolution(x, w):
        return lax.conv_general_dilated(x, w, **settings)

    return convolution, jnp.asarray(x, dtype), jnp.asarray(w, dtype)


def with_gradients(convolution):
    """The result, and the gradients with respect to inputs and weights."""

    def run(x, w):
        y, pull = jax.vjp(convolution, x, w)
        factors = jnp.linspace(-1, 1, y.size, dtype=y.dtype).reshape(y.shape)
        return y, pull(factors)

    return run


CASES = {
    "plain": {},
    "1d": {"rank": 1},
    "3d": {"rank": 3},
    "channels first": {"channels_first": True},
    "valid": {"padding": "VALID"},
    "explicit padding": {"padding": [(2, 1), (0, 3)]},
    "cropped": {"padding": [(-1, 2), (0, -2)]},
    "strided": {"window_strides": (2, 2)},
    "strided otherwise": {"window_strides": (3, 1), "padding": "VALID"},
    "dilated": {"rhs_dilation": (2, 2)},
    "transposed": {"lhs_dilation": (2, 2), "padding": [(1, 2), (2, 2)]},
    "both dilated": {
        "lhs_dilation": (2, 3),
        "rhs_dilation": (2, 1),
        "padding": [(1, 2), (2, 2)],
    },
    "one tap": {"window": 1},
    "one tap, strided": {"window": 1, "window_strides": (2, 2)},
    "few positions": {"size": (2, 2)},
    "one position": {"size": (4, 4), "window": 4, "padding": "VALID"},
    "one feature": {"features": (1, 5)},
    "groups": {"feature_group_count": 2},
    "groups, strided": {
        "feature_group_count": 3,
        "window_strides": (2, 1),
        "features": (6, 9),
    },
    "groups of one tap": {"feature_group_count": 2, "window": 1},
    "groups, channels first": {
        "feature_group_count": 2,
        "channels_first": True,
    },
    "depthwise": {"feature_group_count": 6},
    "depthwise, 1d": {"rank": 1, "feature_group_count": 6},
    "depthwise, 3d": {"rank": 3, "window": 2, "feature_group_count": 6},
    "depthwise, twice as many": {
        "feature_group_count": 6,
        "features": (6, 12),
    },
    "depthwise, strided": {
        "feature_group_count": 6,
        "window_strides": (2, 2),
        "features": (6, 12),
    },
    "depthwise, dilated": {"feature_group_count": 6, "rhs_dilation": (2, 2)},
    "depthwise, one tap": {"feature_group_count": 6, "window": 1},
    "depthwise, channels first": {
        "feature_group_count": 6,
        "channels_first": True,
    },
    "depthwise, many taps": {
        "feature_group_count": 6,
        "size": (14, 13),
        "window": 12,
    },
    "many groups": {"feature_group_count": 65, "features": (130, 130)},
    "no examples left": {"padding": "VALID", "size": (2, 8)},
}


@pytest.mark.rows(8)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_the_same(name):
    convolution, x, w = case(**CASES[name])
    check_same(with_gradients(convolution), x, w)


@pytest.mark.rows(2)
@pytest.mark.parametrize(
    "name", ["plain", "one tap", "few positions", "groups", "depthwise"]
)
def test_gradients_of_gradients_are_the_same(name):
    convolution, x, w = case(**CASES[name])

    def length(x, w):
        return sum((g**2).sum() for g in with_gradients(convolution)(x, w)[1])

    check_same(jax.grad(lambda x, w: length(x, w) ** 0.5, (0, 1)), x, w)


@pytest.mark.rows(2)
@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "strided",
        "transposed",
        "one tap",
        "few positions",
        "groups",
        "depthwise, twice as many",
    ],
)
def test_doubles_are_the_same(name):
    with jax.enable_x64(True):
        convolution, x, w = case(dtype="float64", **CASES[name])
        check_same(with_gradients(convolution), x, w)


@pytest.mark.rows(2)
@pytest.mark.parametrize("name", ["plain", "strided", "one tap", "depthwise"])
def test_half_precision_is_as_precise(name):
    convolution, x, w = case(dtype="bfloat16", **CASES[name])
    check_same(with_gradients(convolution), x, w)


@pytest.mark.parametrize("name", ["one tap", "depthwise"])
def test_products_of_half_precision_may_be_exact(name):
    convolution, x, w = case(
        dtype="bfloat16", preferred_element_type=jnp.float32, **CASES[name]
    )
    check_same(convolution, x, w)


def test_integers_are_not_rewritten():
    convolution, x, w = case(dtype="int32")
    assert "jit" not in operations(convolution, x, w)


@pytest.mark.parametrize(
    ("name", "left"),
    [("one tap", 0), ("depthwise", 0), ("plain", 3), ("groups", 6)],
)
def test_convolutions_that_the_library_runs_fast_are_not_rewritten(name, left):
    convolution, x, w = case(**CASES[name])
    found = operations(with_gradients(convolution), x, w)
    assert found.count("conv_general_dilated") == left


def test_library_receives_its_own_order():
    convolution, x, w = case(channels_first=True)
    text = str(jax.make_jaxpr(with_gradients(convolution))(x, w))
    assert "lhs_spec=(0, 1, 2, 3)" in text
