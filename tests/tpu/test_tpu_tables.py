"""Tests the cost of tables on a TPU with its compiler."""

import keras_tpu_estimator as kte  # isort: skip

import keras
import numpy as np
import pytest
from helpers import estimator_of

WIDTH, LENGTH, BATCH = 128, 20, 4096
TABLES = kte.experimental


def model_fn(features, labels, mode, params):
    y = keras.layers.Dense(1)(features["ids"])
    loss = keras.ops.mean((y - labels) ** 2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def input_fn(params):
    size = params["batch_size"]
    ids = np.zeros((size, LENGTH), "int32")
    while True:
        yield {"ids": ids}, np.zeros((size, 1), "float32")


@pytest.mark.slow
def test_products_are_made_once_and_factors_are_not_sent(tmp_path):
    spec = TABLES.EmbeddingConfigSpec(
        optimization_parameters=TABLES.AdagradParameters(0.1),
        table_to_config_dict={"table": TABLES.TableConfig(100_000, WIDTH)},
        feature_to_config_dict={"ids": TABLES.FeatureConfig("table")},
    )
    made = estimator_of(model_fn, tmp_path, True, BATCH, embedding_config_spec=spec)
    cost = made.plan(input_fn, "v5e:2x2", print_fn=None).cost
    products = 4 * BATCH * LENGTH * WIDTH
    # Without the permuted ones, it would be five times as much.
    assert cost.bytes < 2 * products, cost.bytes / products
    sent = {each.kind: each.bytes for each in cost.collectives}
    assert sent["all-gather"] == {
        "int32": 4 * BATCH * LENGTH,
        "float32": 4 * BATCH * WIDTH,
    }
