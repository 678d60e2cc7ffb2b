"""Tests the communication between cores with the TPU compiler."""

import keras
import numpy as np
import pytest
from helpers import estimator_of, regression_data, repeated, slow

import keras_tpu_estimator as kte

DATA = repeated(*regression_data(size=256))


def planned(
    tmp_path, dtype, config=None, optimizer=None, topology="v5e:2x2", **settings
):
    """Returns the cost of a training step."""

    def model_fn(features, labels, mode, params):
        x = keras.ops.cast(features, dtype)
        x = keras.layers.Dense(256, "relu", dtype=dtype)(x)
        y = keras.layers.Dense(1, dtype=dtype)(x)
        loss = keras.ops.mean((y - keras.ops.cast(labels, dtype)) ** 2)
        wrapped = kte.CrossShardOptimizer(
            optimizer or keras.optimizers.Adam(), **settings
        )
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=wrapped.minimize(loss))

    made = estimator_of(model_fn, tmp_path, use_tpu=True, config=config or {})
    return made.plan(DATA, topology, print_fn=None).cost


WEIGHTS = 256 * 256 + 256 + 256 + 1


def reduced(cost):
    """The bytes of reduced arrays, by dtype."""
    (each,) = [c for c in cost.collectives if c.kind == "all-reduce"]
    return dict(each.bytes)


# The user's choice, and the bytes of a gradient.
CHOICES = [
    ("bfloat16", None, "bfloat16"),
    ("bfloat16", "float32", "float32"),
    ("float32", None, "float32"),
    ("float32", "bfloat16", "bfloat16"),
]


@pytest.mark.rows(2)
@pytest.mark.parametrize(("dtype", "chosen", "sent"), CHOICES)
def test_gradients_are_sent_in_their_dtype(tmp_path, dtype, chosen, sent):
    found = reduced(planned(tmp_path, dtype, reduce_dtype=chosen))
    size = {"bfloat16": 2, "float32": 4}[sent]
    assert found[sent] == pytest.approx(size * WEIGHTS, rel=0.01)
    # Including the loss, and sums that XLA makes in another dtype.
    assert sum(found.values()) == pytest.approx(size * WEIGHTS, rel=0.01)


def test_config_halves_the_sent_bytes_of_a_keras_model(tmp_path):
    model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(256)])
    model.compile("sgd", "mse")
    config = kte.RunConfig(model_dir=str(tmp_path), reduce_dtype="bfloat16")
    estimator = kte.from_keras(model, config=config, train_batch_size=64)
    batches = repeated(np.ones((64, 256), "float32"), np.ones((64, 256), "float32"))
    sent = reduced(estimator.plan(batches, "v5e:2x2", print_fn=None).cost)
    assert sent["bfloat16"] == pytest.approx(2 * 256 * 257, rel=0.01)


@pytest.mark.parametrize("clip", [slow(None), 1.0])
def test_replicas_that_share_slots_divide_the_update(tmp_path, clip):
    found = planned(
        tmp_path,
        "float32",
        config={"shard_optimizer": True},
        optimizer=keras.optimizers.Adam(global_clipnorm=clip),
    )
    sent = {each.kind: each.total for each in found.collectives}
    kernel = 4 * 256 * 256
    # XLA pads scattered arrays, and moves the padded shard.
    assert sent["reduce-scatter"] == pytest.approx(kernel, rel=0.3)
    assert sent["all-gather"] == pytest.approx(kernel, rel=0.02)
    assert sent["all-reduce"] + sent.get("collective-permute", 0) <= 0.3 * kernel


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("dtype", "chosen"), [("float32", "bfloat16"), ("bfloat16", "float32")]
)
def test_micro_batches_scatter_gradients_in_another_dtype(tmp_path, dtype, chosen):
    # XLA's pass that moves scatters out of loops fails at conversions.
    config = {"fsdp": True, "micro_batches": 2}
    found = planned(tmp_path, dtype, config, reduce_dtype=chosen)
    sent = {each.kind: set(each.bytes) for each in found.collectives}
    assert sent["reduce-scatter"] == {chosen}


def test_fsdp_scatters_gradients(tmp_path):
    config = {"fsdp": True}
    found = planned(tmp_path, "float32", config, topology="v5e:4x4")
    sent = {each.kind: sum(each.bytes.values()) for each in found.collectives}
    kernel = 4 * 256 * 256
    # One part over half of the replicas, and one over pairs.
    assert kernel <= sent["reduce-scatter"] <= 1.5 * kernel
    assert sent["all-reduce"] < 0.1 * kernel


def test_fsdp_reduces_no_complete_gradient(tmp_path):
    """Shards of these shapes fill no tiles of a TPU's memory in some layouts."""
    shapes = [(1600, 25, 64), (25, 64, 1600), (768, 12, 64), (1600, 4800)]

    def model_fn(features, labels, mode, params):
        layer = keras.layers.Layer()
        total = keras.ops.mean(features)
        kernels = [layer.add_weight(shape) for shape in shapes]
        loss = sum(keras.ops.mean(keras.ops.sin(total * each)) for each in kernels)
        wrapped = kte.CrossShardOptimizer(keras.optimizers.Adam())
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=wrapped.minimize(loss))

    made = estimator_of(model_fn, tmp_path, use_tpu=True, config={"fsdp": True})
    found = made.plan(DATA, "v5e:4x4", print_fn=None).cost
    sent = {each.kind: each.total for each in found.collectives}
    kernel = 4 * 1600 * 25 * 64
    # XLA replaces the second part of one scatter: an eighth of that gradient.
    assert sent["all-reduce"] < 0.2 * kernel
