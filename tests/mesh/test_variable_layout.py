"""Tests of how variables are sharded over the cores of a replica."""

import jax
import jax.numpy as jnp
import keras
import pytest
from jax.sharding import PartitionSpec as P

from keras_tpu_estimator.base.mesh.all_cores import all_cores
from keras_tpu_estimator.base.mesh.variable_layout import VariableLayout

SIZES = (("model", 4),)
REPLICAS = ("batch", 2)
RULES = ((".*up/kernel", (None, "model")), ("up/bias", ("model",)))


def layout(rules=RULES, **kwargs):
    return VariableLayout(SIZES, REPLICAS, rules, **kwargs)


@pytest.mark.parametrize(
    ("path", "shape", "axes"),
    [
        ("net/up/kernel", (3, 8), (None, "model")),
        ("up/bias", (8,), ("model",)),
        # Patterns must match complete paths.
        ("net/up/bias", (8,), ()),
        ("up/kernel_of_another", (3, 8), ()),
    ],
)
def test_rules(path, shape, axes):
    assert layout().axes(path, shape) == axes


def test_slot_is_sharded_like_its_variable():
    slot = "adam/up_kernel_momentum"
    assert layout().axes(slot, (3, 8), "up/kernel") == (None, "model")
    assert layout().axes(slot, (3, 8)) == ()


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((128, 256), (None, "model")),
        ((512, 256), ("model", None)),
        # The last of several equal dimensions.
        ((3, 3, 128, 128), (None, None, None, "model")),
        # A dimension that four cores can share, or none.
        ((1001, 256), (None, "model")),
        ((1001, 255), (None, None)),
        # Small variables and vectors are replicated.
        ((8, 8), ()),
        ((100_000,), ()),
    ],
)
def test_large_variables_are_split_by_default(shape, axes):
    assert layout(rules=None).axes("any", shape) == axes


@pytest.mark.parametrize(
    ("path", "shape", "axes"),
    [
        # The first unsharded dimension that two replicas can share.
        ("up/kernel", (4, 8), ("batch", "model")),
        ("up/kernel", (3, 8), (None, "model")),
        ("other", (3, 8), (None, "batch")),
        ("other", (), ()),
    ],
)
def test_replicas_share_slots(path, shape, axes):
    shared = layout(optimizer_is_sharded=True)
    assert shared.axes("slot", shape, path) == axes
    assert "batch" not in shared.axes(path, shape)


@pytest.mark.parametrize(
    ("rules", "shape", "message"),
    [
        (
            ((".*", ("model",)), ("u.*", ("model",))),
            (8,),
            r"At most one rule .* match 'up'. Received: \['\.\*', 'u\.\*'\]",
        ),
        (
            (("up", (None, "model")),),
            (8,),
            r"axis or None for each dimension.*'up': \(None, 'model'\), "
            r"which matches 'up' of shape \(8,\)",
        ),
        (
            (("up", ("model",)),),
            (6,),
            r"axis 'model' of size 4 must divide .*shape \(6,\)",
        ),
        (
            (("up", ("batch",)),),
            (8,),
            r"must name the axes \['model'\]. Received",
        ),
    ],
)
def test_mismatched_rules_are_refused(rules, shape, message):
    with pytest.raises(ValueError, match=message):
        layout(rules).axes("up", shape)


def test_patterns_without_a_match_are_refused():
    assert layout().unmatched({"up/kernel": 0}) == ["up/bias"]
    assert layout(rules=None).unmatched({}) == []


def test_shardings_of_a_mesh():
    cores = all_cores(per_replica=4, layout_map=dict(RULES))
    sharding = cores.variable_sharding("up/kernel", (3, 8))
    assert sharding.shard_shape((3, 8)) == (3, 2)
    assert sharding.spec == P(None, ("model_0", "model_1"))
    assert cores.variable_sharding("other", (3, 8)).is_fully_replicated
    assert cores.topology.num_replicas == 2
    assert cores.topology.num_cores == 8


@pytest.fixture
def on_three_axes():
    """A distribution with two axes for the cores of a replica."""
    mesh = keras.distribution.DeviceMesh(
        (2, 2, 2),
        ["batch", "model", "expert"],
        keras.distribution.list_devices(),
    )
    rules = keras.distribution.LayoutMap(mesh)
    rules["up/kernel"] = ("expert", "model")
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=rules, batch_dim_name="batch")
    )
    yield rules
    keras.distribution.set_distribution(None)


def test_axes_of_a_distribution_keep_their_names(on_three_axes):
    cores = all_cores(layout_map=on_three_axes)
    sharding = cores.variable_sharding("up/kernel", (4, 8))
    assert sharding.spec == P("expert", "model")
    assert sharding.shard_shape((4, 8)) == (2, 4)


def test_shards_use_complete_axes(on_three_axes):
    cores = all_cores(layout_map=on_three_axes).as_one()
    x = jnp.zeros((4, 8))
    assert jax.jit(lambda x: cores.cut(x, [2, 2]))(x).shape == (4, 8)
    with pytest.raises(ValueError, match=r"Shards of \[1, 8\] .*'expert': 2"):
        cores.cut(x, [1, 8])
