"""Plans for several TPU slices."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_tpu_estimator as kte

SIZE = 512


def model_fn(features, labels, mode, params):
    hidden = layers.Dense(SIZE, "relu", use_bias=False)(features)
    hidden = layers.Dense(SIZE, "relu", use_bias=False)(hidden)
    loss = ops.mean((hidden - labels) ** 2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(1e-3))
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def input_fn(params):
    batch = np.zeros((params["batch_size"], SIZE), "float32")
    yield batch, batch


@pytest.mark.parametrize("fsdp", [True, False])
def test_only_sums_of_gradients_are_sent_between_slices(fsdp, tmp_path):
    config = kte.RunConfig(
        model_dir=str(tmp_path), tpu_config=kte.TPUConfig(4), fsdp=fsdp
    )
    estimator = kte.TPUEstimator(model_fn, config=config, train_batch_size=64)
    one, two = estimator.plan(input_fn, ["v5e:2x2", "2xv5e:2x2"], print_fn=None)
    weights = 2 * SIZE**2 * 4
    sent = {each.kind: each.total for each in two.cost.collectives}
    # A core sends its share of the gradients of a slice, and the loss.
    assert weights / 4 <= sent["send to another slice"] < 1.1 * weights / 4
    assert "send to another slice" not in {each.kind for each in one.cost.collectives}
    assert not two.cost.callbacks
    variables = [plan.cost.memory.arrays["variables"].real for plan in (one, two)]
    assert variables[0] == variables[1]
    assert two.topology.num_cores == 8
