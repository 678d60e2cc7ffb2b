"""Long attentions with the TPU compiler: memory, and the kernel's operations."""

import keras
import numpy as np
import pytest
from helpers import estimator_of, repeated

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.tpu import attention

LENGTH, HEADS, SIZE = 2048, 8, 64
WIDTH = HEADS * SIZE
DATA = repeated(np.zeros((8, LENGTH, WIDTH), "float32"), np.zeros((8,), "float32"))


def planned(tmp_path, topology):
    """Returns the cost of a training step of one attention."""

    def model_fn(features, labels, mode, params):
        layer = keras.layers.MultiHeadAttention(HEADS, SIZE)
        y = layer(features, features, use_causal_mask=True)
        loss = keras.ops.mean((keras.ops.mean(y, (1, 2)) - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD())
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    estimator = estimator_of(model_fn, tmp_path, use_tpu=True, batch=8)
    return estimator.plan(DATA, topology, print_fn=None).cost


@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2"])
@pytest.mark.rows(1)
def test_kernel_stores_no_scores(topology, tmp_path, monkeypatch):
    """Its operations are those of the products of blocks that a query sees."""
    kernel = planned(tmp_path / "kernel", topology)
    monkeypatch.setattr(attention, "MIN_LENGTH", 2 * LENGTH)
    plain = planned(tmp_path / "plain", topology)
    scores = 4 * 2 * HEADS * LENGTH**2
    assert plain.memory.temporary - kernel.memory.temporary > scores
    assert (kernel.attentions, plain.attentions) == (1, 0)
    assert not kernel.kernels
    # Plain attention computes two products, and four in its gradient. The kernel
    # computes nine, for 10 of 16 blocks.
    product = 2 * 2 * HEADS * SIZE * LENGTH**2
    assert kernel.flops - 9 * 10 / 16 * product == pytest.approx(
        plain.flops - 6 * product, rel=0.15
    )
