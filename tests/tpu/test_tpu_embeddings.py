"""Tests embedding tables with each combiner and optimizer."""

import keras
import numpy as np
import pytest
from keras import layers, ops
from tpu_models import BATCH, made
from tpu_programs import EVALUATED, LAID_OUT, MODES, Program, rows
from tpu_table import TOPOLOGIES

import keras_tpu_estimator as kte

tables = kte.experimental
OPTIMIZERS = {
    "SGD": tables.StochasticGradientDescentParameters(0.1),
    "Adagrad": tables.AdagradParameters(0.1),
    "ProximalAdagrad": tables.ProximalAdagradParameters(0.1),
    "Adam": tables.AdamParameters(0.1),
    "FTRL": tables.FtrlParameters(0.1),
    "Momentum": tables.MomentumParameters(0.1, 0.9),
    "RMSProp": tables.RMSPropParameters(0.1, 0.9, 0.5, 1e-6),
}
FEATURES = ("ids", "others", "sequence", "weighted")


def input_fn(params):
    """Ids of three words, and of one user."""
    size, rng = params["batch_size"], np.random.default_rng(0)
    while True:
        features = {
            name: rng.integers(-1, 90, (size, 3)).astype("int32") for name in FEATURES
        }
        features["weights"] = np.ones((size, 3), "float32")
        features["user"] = rng.integers(0, 50, size).astype("int32")
        yield features, np.ones((size, 1), "float32")


def model_fn(features, labels, mode, params):
    """A layer over all looked-up activations."""
    parts = [layers.Flatten()(features[name]) for name in (*FEATURES, "user")]
    y = layers.Dense(1)(ops.concatenate(parts, axis=1))
    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(mode, predictions={"y": y})
    loss = ops.mean((y - labels) ** 2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam())
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def with_tables(
    optimizer,
    modes=MODES,
    topologies=TOPOLOGIES[:1],
    seldom=(),
    **settings,
):
    """A program with a table for each combiner."""
    spec = tables.EmbeddingConfigSpec(
        optimization_parameters=optimizer,
        table_to_config_dict={
            "mean": tables.TableConfig(90, 16, combiner="mean"),
            "sum": tables.TableConfig(90, 128, combiner="sum"),
            "sqrtn": tables.TableConfig(91, 8, combiner="sqrtn"),
            "one": tables.TableConfig(50, 8, combiner=None),
        },
        feature_to_config_dict={
            "ids": tables.FeatureConfig("mean"),
            "others": tables.FeatureConfig("sum"),
            "weighted": tables.FeatureConfig("sqrtn", weight_key="weights"),
            "sequence": tables.FeatureConfig("mean", max_sequence_length=2),
            "user": tables.FeatureConfig("one"),
        },
    )
    return Program(
        lambda folder: made(
            folder, model_fn=model_fn, embedding_config_spec=spec, **settings
        ),
        lambda mode: input_fn,
        modes,
        topologies,
        seldom,
        seldom_in=EVALUATED,
        collectives=LAID_OUT,
        is_quick=True,
    )


AT_LENGTH = {"topologies": (), "seldom": TOPOLOGIES[:1]}
PROGRAMS = {
    # Evaluation and prediction do not depend on the optimizer.
    **{
        name: with_tables(each, MODES[:1], **AT_LENGTH)
        for name, each in OPTIMIZERS.items()
    },
    # This optimizer has two slots.
    "Adam": with_tables(OPTIMIZERS["Adam"], seldom=TOPOLOGIES[1:]),
    "clipped, with decay": with_tables(
        tables.AdagradParameters(
            0.1,
            clip_gradient_min=-1.0,
            clip_gradient_max=1.0,
            clip_weight_min=-2.0,
            clip_weight_max=2.0,
            weight_decay_factor=0.01,
        ),
        **AT_LENGTH,
    ),
    "num_cores_per_replica=2": with_tables(
        OPTIMIZERS["Adagrad"], tpu={"num_cores_per_replica": 2}
    ),
    "use_tpu=False": with_tables(OPTIMIZERS["Adagrad"], use_tpu=False, **AT_LENGTH),
}


@pytest.mark.rows(2)
@pytest.mark.parametrize(("name", "mode", "topology"), rows(PROGRAMS))
def test_tables(name, mode, topology, compiles):
    compiles(PROGRAMS, name, mode, topology)


def test_no_array_of_a_tables_size_is_sent(tmp_path):
    spec = tables.EmbeddingConfigSpec(
        optimization_parameters=tables.AdagradParameters(0.1),
        table_to_config_dict={"all": tables.TableConfig(1_000_000, 16)},
        feature_to_config_dict={
            **{n: tables.FeatureConfig("all") for n in FEATURES[:3]},
            "weighted": tables.FeatureConfig("all", weight_key="weights"),
            "user": tables.FeatureConfig("all"),
        },
    )
    program = Program(
        lambda folder: made(folder, model_fn=model_fn, embedding_config_spec=spec),
        lambda mode: input_fn,
    )
    cost = program.plan(tmp_path, "train", "v5e:2x2").cost
    # Each id of the batch is sent with a row, and the gradient returns.
    assert 0 < cost.sent < 4 * BATCH * 13 * 17 * 4
    assert not cost.state_copies
