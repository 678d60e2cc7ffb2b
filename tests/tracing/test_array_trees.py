"""Tests the paths of leaves in pytrees of JAX, flax and equinox."""

import typing

import jax
import numpy as np
import pytest

from keras_tpu_estimator.base.tracing.array_trees import leaves_of, with_values
from keras_tpu_estimator.base.tracing.variable_classes import is_key

ONE = np.ones(1, "float32")


class Pair(typing.NamedTuple):
    """A named tuple."""

    left: np.ndarray
    right: list


def paths(tree, **settings):
    return ["/".join(leaf.parts) for leaf in leaves_of(tree, **settings)]


def test_keys_of_all_kinds():
    tree = {"a": [ONE, (ONE,)], "b": Pair(ONE, [ONE]), "c": None}
    assert paths({"t": tree, "u": {3: ONE}}) == [
        *("t/a/0", "t/a/1/0", "t/b/left", "t/b/right/0"),
        "u/3",
    ]


def test_single_array_and_keys_with_slashes():
    assert paths(ONE) == [""]
    assert paths({"mlp/~/linear_0": {"w": ONE}}) == ["mlp/~/linear_0/w"]


def test_redundant_positions_are_omitted():
    state = (Pair(ONE, [{"0": ONE}]), ())
    assert paths(state, positions=False) == ["left", "right/0"]


def test_leaves_must_be_arrays():
    leaves = leaves_of({"f": np.tanh, "key": jax.random.key(0), "n": 1, "x": ONE})
    assert [leaf.is_array for leaf in leaves] == [False, True, False, True]
    assert [leaf.key_impl is None for leaf in leaves] == [*(True, False, True, True)]


def test_variables_of_nnx():
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(2, 2, use_bias=False, rngs=rngs)
            self.norm = nnx.BatchNorm(2, rngs=rngs)
            self.tied = self.first.kernel
            self.drop = nnx.Dropout(0.5, rngs=rngs)

    net = Net(nnx.Rngs(0))
    leaves = leaves_of(net)
    assert {"/".join(leaf.parts): leaf.is_state for leaf in leaves} == {
        "drop/rngs/count": True,
        "drop/rngs/key": True,
        "first/kernel": False,
        "norm/bias": False,
        "norm/mean": True,
        "norm/scale": False,
        "norm/var": True,
    }
    assert [leaf.parts for leaf in leaves if leaf.is_again] == [("first", "kernel")]
    made = with_values(net, [leaf.value for leaf in leaves])
    assert made.tied is made.first.kernel
    assert made.tied is not net.tied
    # The state of a module has the same paths.
    assert {*paths(nnx.state(net, nnx.Param))} < {*paths(net)}


def test_axis_metadata_of_linen_is_not_in_paths():
    nn = pytest.importorskip("flax.linen", reason="flax is not installed")
    init = nn.with_partitioning(nn.initializers.ones, ("in", "out"))
    layer = nn.Dense(2, kernel_init=init)
    tree = layer.init(jax.random.key(0), np.ones((1, 2), "float32"))
    assert paths(tree) == ["params/bias", "params/kernel"]
    assert not any(leaf.is_state for leaf in leaves_of(tree))


def test_modules_of_equinox():
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    net = eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))
    arrays = ["/".join(leaf.parts) for leaf in leaves_of(net) if leaf.is_array]
    assert arrays == [
        f"layers/{number}/{name}" for number in range(2) for name in ("weight", "bias")
    ]


def test_only_typed_keys_are_keys():
    assert is_key(jax.random.key(0))
    assert is_key(jax.random.split(jax.random.key(0)))
    assert not is_key(jax.random.PRNGKey(0))
