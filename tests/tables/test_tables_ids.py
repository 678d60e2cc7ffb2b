"""Tests that ids of any integer dtype select the right rows."""

import numpy as np
import pytest
from dense_tables import (
    BATCH,
    dense_training,
    in_checkpoint,
    input_of,
    score,
    tables,
    tables_estimator,
)
from helpers import slow

import keras_tpu_estimator as kte

pytestmark = pytest.mark.usefixtures("forked_trials")

# The dtypes can represent all ids, but not most of these sizes.
ROWS = {
    "int8": 128,
    "uint8": 256,
    "int16": 40_000,
    "uint16": 65_536,
    "int32": 40_000,
    "uint32": 40_000,
    "int64": 40_000,
    "uint64": 40_000,
}
# The kinds of lookups, and the columns of their activations.
COLUMNS = {"one": 1, "several": 1, "weighted": 1, "words": 3}
# Ids become int32 before their shapes are read.
FORMS = {
    "int8": ("several", "one"),
    "uint8": ("several", "weighted"),
    "int16": ("several", "words"),
    "uint16": ("several", "one"),
    "int32": ("several", "weighted"),
    "uint32": ("several", "words"),
    "int64": ("several", "one"),
    "uint64": ("several", "weighted"),
}
STEPS = 3
SIZE = sum(COLUMNS[form] for forms in FORMS.values() for form in forms)


def rows_of(shape, dtype=None):
    return np.random.default_rng(3).normal(0, 0.5, shape).astype("float32")


def every_dtype():
    """Tables for ids of each dtype, with two kinds of features each."""
    sgd = tables.StochasticGradientDescentParameters(0.5)
    settings_of = {
        "one": {},
        "several": {},
        "weighted": {"weight_key": "weights of "},
        "words": {"max_sequence_length": 3},
    }
    features = {}
    for dtype in ROWS:
        for form in FORMS[dtype]:
            name = f"{form} {dtype}"
            own = {
                key: value + name if key == "weight_key" else value
                for key, value in settings_of[form].items()
            }
            table = f"single {dtype}" if form == "one" else dtype
            features[name] = tables.FeatureConfig(table, **own)
    return tables.EmbeddingConfigSpec(
        optimization_parameters=sgd,
        table_to_config_dict={
            **{
                dtype: tables.TableConfig(size, 1, rows_of, "sqrtn")
                for dtype, size in ROWS.items()
            },
            **{
                f"single {dtype}": tables.TableConfig(size, 1, rows_of, None)
                for dtype, size in ROWS.items()
                if "one" in FORMS[dtype]
            },
        },
        feature_to_config_dict=features,
    )


def data_of(spec):
    """Ids as int64 for dense tables, ids in their dtypes, and labels."""
    rng = np.random.default_rng(0)
    plain, given = {}, {}
    for name, feature in spec.features.items():
        dtype = np.dtype(name.split()[1])
        size = spec.tables[feature.table_id].vocabulary_size
        highest = min(size, np.iinfo(dtype).max + 1)
        ids = rng.integers(0, highest, (BATCH, 1 if "one" in name else 4))
        ids[0] = highest - 1
        missing = -1 if dtype.kind == "i" else np.iinfo(dtype).max
        if missing == -1 or size <= missing:
            ids[rng.random(ids.shape) < 0.3] = -1
        plain[name] = ids
        # Devices do not support the largest 64-bit numbers.
        narrow = "uint32" if dtype == "uint64" else dtype
        given[name] = ids.astype(narrow).astype(dtype)
        if feature.weight_key:
            weights = rng.uniform(0.5, 2, ids.shape).astype("float32")
            plain[feature.weight_key] = given[feature.weight_key] = weights
    return plain, given, rng.normal(size=BATCH).astype("float32")


@pytest.fixture(scope="module")
def trained():
    """The results of dense tables."""
    spec = every_dtype()
    plain, _, labels = data_of(spec)
    start = {
        name: rows_of((table.vocabulary_size, 1)) for name, table in spec.tables.items()
    }
    return dense_training(
        spec,
        start,
        plain,
        labels,
        STEPS,
        lambda name, w, s, g, step: (w - 0.5 * g, ()),
    )


def activations_of(spec, values, plain):
    """The rows looked up in dense tables."""
    found = {}
    for name, feature in spec.features.items():
        ids = plain[name]
        weights = np.where(ids >= 0, 1.0, 0.0)
        if feature.weight_key:
            weights = weights * plain[feature.weight_key]
        rows = values[feature.table_id][np.maximum(ids, 0)]
        rows = rows * weights[..., None]
        if feature.max_sequence_length:
            found[name] = rows[:, : feature.max_sequence_length]
            continue
        total = np.sqrt((weights**2).sum(1, keepdims=True))
        if "one" in name:
            total = np.ones_like(total)
        found[name] = rows.sum(1) / np.where(total == 0, 1, total)
    return found


@pytest.mark.rows(1)
@pytest.mark.parametrize("use_tpu", [True, slow(False)])
def test_results_match_dense_tables(tmp_path, trained, use_tpu):
    spec = every_dtype()
    plain, given, labels = data_of(spec)
    lengths = [
        f"words {dtype}_seq_length_"
        for dtype, forms in FORMS.items()
        if "words" in forms
    ]
    estimator = tables_estimator(
        spec,
        SIZE,
        tmp_path / "model",
        use_tpu,
        keys=[*spec.features, *lengths],
    )
    estimator.train(input_of(given, labels), steps=STEPS)
    want, _, kernel = trained
    got = in_checkpoint(estimator)
    for name in spec.tables:
        np.testing.assert_allclose(got[name], want[name], atol=1e-6, err_msg=name)
        moved = got[name] != rows_of(got[name].shape)
        assert np.count_nonzero(moved) > 10, name
    want = activations_of(spec, got, plain)
    y = np.asarray(score(want, kernel))
    loss = np.mean((y - labels) ** 2)
    evaluated = estimator.evaluate(input_of(given, labels), steps=1)
    assert evaluated["loss"] == pytest.approx(loss, rel=1e-5)
    predicted = list(estimator.predict(lambda params: iter([given])))
    for name, values in want.items():
        np.testing.assert_allclose(
            np.stack([each[name] for each in predicted]),
            values,
            rtol=1e-5,
            atol=1e-6,
            err_msg=name,
        )
    if not use_tpu:
        check_export(estimator, given, want, tmp_path / "export")


def check_export(estimator, given, want, folder):
    import tensorflow as tf

    receiver_fn = kte.export.build_raw_serving_input_receiver_fn(given)
    folder = estimator.export_saved_model(str(folder), receiver_fn)
    loaded = tf.saved_model.load(folder, ["serve"])
    signature = loaded.signatures["serving_default"]
    got = signature(**{k: tf.constant(v) for k, v in given.items()})
    for name, values in want.items():
        np.testing.assert_allclose(
            got[name], values, rtol=1e-5, atol=1e-6, err_msg=name
        )
