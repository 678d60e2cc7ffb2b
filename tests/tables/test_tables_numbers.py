"""Tests that sharded tables train like dense ones whose unused rows are constant."""

import functools

import keras
import numpy as np
import pytest
from dense_tables import (
    BATCH,
    dense_training,
    ids_of,
    in_checkpoint,
    input_of,
    model_fn_of,
    tables,
    tables_estimator,
)
from helpers import estimator_of, slow

import keras_tpu_estimator as kte

STEPS = 8


def sgd(w, s, g, rate=0.2):
    return w - rate * g, ()


def adagrad(w, s, g, rate=0.2):
    (squares,) = s or (0.1,)
    squares = squares + g * g
    return w - rate * g / np.sqrt(squares), (squares,)


def proximal_adagrad(w, s, g, rate=0.2, l1=0.01, l2=0.1):
    (squares,) = s or (0.1,)
    squares = squares + g * g
    rates = rate / np.sqrt(squares)
    w = w - rates * g
    w = np.sign(w) * np.maximum(np.abs(w) - rates * l1, 0) / (1 + rates * l2)
    return w, (squares,)


def adam(w, s, g, rate=0.02):
    m, v = s or (0.0, 0.0)
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return w - rate * m / np.sqrt(v + 1e-16), (m, v)


def adam_outside(w, s, g, rate=0.02):
    m, v = s or (0.0, 0.0)
    m, v = 0.8 * m + 0.2 * g, 0.99 * v + 0.01 * g * g
    return w - rate * m / (np.sqrt(v) + 1e-3), (m, v)


def ftrl(w, s, g, rate=0.2, l1=0.001, l2=0.1, scale=1.0):
    n, z = s or (0.1, 0.0)
    new = n + g * g
    z = z / scale + g - (np.sqrt(new) - np.sqrt(n)) / rate * w
    w = np.where(
        np.abs(z) > l1,
        (np.sign(z) * l1 - z) / (np.sqrt(new) / rate + 2 * l2),
        0,
    )
    return w, (new, z * scale)


def momentum(w, s, g, rate=0.2):
    (m,) = s or (0.0,)
    m = 0.9 * m + g
    return w - rate * m, (m,)


def nesterov(w, s, g, rate=0.2):
    (m,) = s or (0.0,)
    m = 0.9 * m + g
    return w - rate * (g + 0.9 * m), (m,)


def rmsprop(w, s, g, rate=0.02):
    ms, mom = s or (0.0, 0.0)
    ms = 0.9 * ms + 0.1 * g * g
    mom = 0.5 * mom + rate * g / np.sqrt(ms + 1e-3)
    return w - mom, (ms, mom)


def clipped(w, s, g, rate=0.2):
    w = w * (1 - 0.01 * rate)
    w, s = sgd(w, s, np.clip(g, -0.01, 0.02), rate)
    return np.clip(w, -0.5, 0.4), s


CLIPPED = tables.StochasticGradientDescentParameters(
    0.2,
    clip_weight_min=-0.5,
    clip_weight_max=0.4,
    weight_decay_factor=0.01,
    multiply_weight_decay_factor_by_learning_rate=True,
    clip_gradient_min=-0.01,
    clip_gradient_max=0.02,
)
OPTIMIZERS = {
    "sgd": (sgd, tables.StochasticGradientDescentParameters(0.2)),
    "adagrad": (adagrad, tables.AdagradParameters(0.2)),
    "proximal": (
        proximal_adagrad,
        tables.ProximalAdagradParameters(0.2, 0.1, 0.01, 0.1),
    ),
    "adam": (adam, tables.AdamParameters(0.02)),
    "adam_outside": (
        adam_outside,
        tables.AdamParameters(0.02, 0.8, 0.99, 1e-3, sum_inside_sqrt=False),
    ),
    "ftrl": (
        ftrl,
        tables.FtrlParameters(
            0.2,
            l1_regularization_strength=0.001,
            l2_regularization_strength=0.1,
        ),
    ),
    "ftrl_times": (
        lambda w, s, g: ftrl(w, s, g, scale=0.2),
        tables.FtrlParameters(
            0.2,
            l1_regularization_strength=0.001,
            l2_regularization_strength=0.1,
            multiply_linear_by_learning_rate=True,
        ),
    ),
    "momentum": (momentum, tables.MomentumParameters(0.2, 0.9)),
    "nesterov": (
        nesterov,
        tables.MomentumParameters(0.2, 0.9, use_nesterov=True),
    ),
    "rmsprop": (rmsprop, tables.RMSPropParameters(0.02, 0.9, 0.5, 1e-3)),
    "clipped": (clipped, CLIPPED),
}
# The size is not divisible by the number of cores.
VOCABULARY, DIMENSION = 37, 3


def random_rows(shape, dtype=None):
    return np.random.default_rng(3).normal(0, 0.5, shape).astype("float32")


def every_optimizer():
    """A table for each optimizer, with its ids and labels."""
    rng = np.random.default_rng(0)
    spec = tables.EmbeddingConfigSpec(
        table_to_config_dict={
            name: tables.TableConfig(
                VOCABULARY,
                DIMENSION,
                random_rows,
                optimization_parameters=optimizer,
            )
            for name, (_, optimizer) in OPTIMIZERS.items()
        },
        feature_to_config_dict={
            f"of_{name}": tables.FeatureConfig(name) for name in OPTIMIZERS
        },
    )
    features = {name: ids_of(rng, VOCABULARY) for name in spec.features}
    labels = rng.normal(size=BATCH * 4).astype("float32")
    return spec, features, labels


def every_combiner():
    """A table for each combiner, and all kinds of features, with ids and labels."""
    rng = np.random.default_rng(1)
    combiners = {"m": "mean", "s": "sum", "q": "sqrtn", "n": None}
    spec = tables.EmbeddingConfigSpec(
        optimization_parameters=tables.AdagradParameters(0.2),
        table_to_config_dict={
            name: tables.TableConfig(VOCABULARY, DIMENSION, random_rows, combiner)
            for name, combiner in combiners.items()
        },
        feature_to_config_dict={
            **{f"of_{name}": tables.FeatureConfig(name) for name in combiners},
            # Another kind of feature of the same table.
            "also": tables.FeatureConfig("m", weight_key="weights"),
            "weighted": tables.FeatureConfig("q", weight_key="more weights"),
            "words": tables.FeatureConfig("m", max_sequence_length=3),
            "few": tables.FeatureConfig("s", max_sequence_length=7),
        },
    )
    features = {name: ids_of(rng, VOCABULARY) for name in spec.features}
    features["of_n"] = features["of_n"][:, :1]
    features["few"] = np.pad(features["few"], ((0, 0), (0, 2)), constant_values=-1)
    weights = rng.uniform(0.5, 2, (BATCH * 4, 5)).astype("float32")
    features |= {"weights": weights, "more weights": weights[::-1].copy()}
    labels = rng.normal(size=BATCH * 4).astype("float32")
    return spec, features, labels


def start_of(spec):
    return {
        name: random_rows((t.vocabulary_size, t.dimension))
        for name, t in spec.tables.items()
    }


@functools.cache
def dense(make):
    """The results of dense tables."""
    spec, features, labels = make()

    def move(name, w, s, g, step):
        of_table, _ = OPTIMIZERS.get(name, OPTIMIZERS["adagrad"])
        return of_table(w, s, g)

    return dense_training(spec, start_of(spec), features, labels, STEPS, move)


def sizes_of(spec):
    """The number of weights of a spec's model, and the keys of its features."""
    size = sum(
        spec.tables[f.table_id].dimension * (f.max_sequence_length or 1)
        for f in spec.features.values()
    )
    lengths = [
        f"{name}_seq_length_"
        for name, f in spec.features.items()
        if f.max_sequence_length
    ]
    return {"size": size, "keys": [*spec.features, *lengths]}


@pytest.mark.rows(2)
@pytest.mark.parametrize(
    ("make", "use_tpu", "micro_batches"),
    [
        (every_optimizer, True, 1),
        slow(every_optimizer, False, 1),
        slow(every_combiner, True, 1),
        (every_combiner, False, 1),
        (every_combiner, True, 4),
        slow(every_combiner, False, 4),
    ],
)
def test_results_match_dense_tables(make, use_tpu, micro_batches, tmp_path):
    spec, features, labels = make()
    estimator = tables_estimator(
        spec,
        model_dir=tmp_path,
        use_tpu=use_tpu,
        config={"micro_batches": micro_batches},
        **sizes_of(spec),
    )
    estimator.train(input_of(features, labels), steps=STEPS)
    start = start_of(spec)
    want, slots, kernel = dense(make)
    got = in_checkpoint(estimator)
    np.testing.assert_allclose(got["kernel"], kernel, atol=1e-6)
    for name in spec.tables:
        assert got[name].shape == want[name].shape
        np.testing.assert_allclose(got[name], want[name], atol=1e-6)
        assert np.abs(got[name] - start[name]).max() > 1e-2
        for number, (slot, first) in enumerate(spec.optimizer_of(name).slots.items()):
            rows = np.full_like(want[name], first)
            for row, values in enumerate(slots[name]):
                if values is not None:
                    rows[row] = values[number]
            np.testing.assert_allclose(
                got[f"{name}/{slot}"], rows, atol=3e-6, rtol=1e-6
            )


@pytest.mark.parametrize(
    ("use_tpu", "micro_batches", "parts"),
    [slow(True, 1, 8), (True, 4, 32), (False, 4, 4)],
)
def test_sums_over_cores_and_micro_batches(use_tpu, micro_batches, parts, tmp_path):
    spec, features, labels = every_combiner()
    # Micro-batches have one size, so their sum is their number times their mean.
    spec = spec._replace(
        optimization_parameters=tables.StochasticGradientDescentParameters(0.2 / parts)
    )
    estimator = estimator_of(
        model_fn_of(
            spec,
            **sizes_of(spec),
            minimize=functools.partial(at_rate, 0.1 / parts),
        ),
        tmp_path,
        use_tpu,
        BATCH,
        config={"micro_batches": micro_batches},
        embedding_config_spec=spec,
    )
    estimator.train(input_of(features, labels), steps=STEPS)
    want, _, kernel = dense_training(
        spec,
        start_of(spec),
        features,
        labels,
        STEPS,
        lambda name, w, s, g, step: sgd(w, s, g),
    )
    got = in_checkpoint(estimator)
    np.testing.assert_allclose(got["kernel"], kernel, atol=1e-6)
    for name in spec.tables:
        np.testing.assert_allclose(got[name], want[name], atol=1e-6)


def at_rate(rate, optimizer, loss):
    """A train op whose gradients are the sum over cores."""
    del optimizer
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(rate), reduction="sum")
    return optimizer.minimize(loss)
