"""Tests tables of few rows, and batches without ids."""

import jax.numpy as jnp
import numpy as np
import pytest
from dense_tables import BATCH, in_checkpoint, input_of, tables, tables_estimator
from helpers import each_once

on_cores = pytest.mark.parametrize("use_tpu", [True, False])
LABELS = np.ones(BATCH, "float32")


def spec_of(rows=13, feature=None, optimizer=None, **table):
    """The spec of one table with the feature `ids`."""
    return tables.EmbeddingConfigSpec(
        optimization_parameters=optimizer or tables.AdagradParameters(0.1),
        table_to_config_dict={"words": tables.TableConfig(rows, 2, **table)},
        feature_to_config_dict={
            "ids": tables.FeatureConfig("words", **(feature or {}))
        },
    )


def trained(spec, model_dir, use_tpu, ids, size=2, keys=None, steps=1):
    estimator = tables_estimator(spec, size, model_dir, use_tpu, keys=keys)
    return estimator.train(input_of({"ids": ids}, LABELS), steps=steps)


def activations(estimator, ids):
    got = estimator.predict(lambda params: iter([{"ids": ids}]))
    return np.stack([each["ids"] for each in got])


WITHOUT_IDS = {
    "no width": np.zeros((BATCH, 0), "int32"),
    "padding": np.full((BATCH, 3), -1),
    "the first not there": np.full((BATCH, 3), 13),
    "extremes": np.tile([13, 2**31 - 1, -(2**31)], (BATCH, 1)),
}


@pytest.mark.rows(3)
@pytest.mark.parametrize(("use_tpu", "name"), each_once([True, False], [*WITHOUT_IDS]))
def test_examples_without_ids(tmp_path, use_tpu, name):
    ids = WITHOUT_IDS[name]
    rows = np.arange(26, dtype="float32").reshape(13, 2)
    combiners = ("mean", "sum", "sqrtn")
    spec = tables.EmbeddingConfigSpec(
        optimization_parameters=tables.AdagradParameters(0.1),
        table_to_config_dict={
            each: tables.TableConfig(13, 2, lambda shape, dtype: rows, each)
            for each in combiners
        },
        feature_to_config_dict={
            f"by {each}": tables.FeatureConfig(each) for each in combiners
        },
    )
    features = {name: ids for name in spec.features}
    estimator = tables_estimator(spec, 6, tmp_path, use_tpu, keys=[*features])
    estimator.train(input_of(features, LABELS), steps=1)
    found = in_checkpoint(estimator)
    for each in combiners:
        np.testing.assert_array_equal(found[each], rows, err_msg=each)
    for row in estimator.predict(lambda params: iter([features])):
        assert not any(row[name].any() for name in features), row
    loss = estimator.evaluate(input_of(features, LABELS), steps=1)["loss"]
    assert loss == 1


@on_cores
def test_sequences_without_ids(tmp_path, use_tpu):
    ids = np.zeros((BATCH, 0), "int32")
    spec = spec_of(feature={"max_sequence_length": 2})
    estimator = trained(spec, tmp_path, use_tpu, ids, 4, ["ids", "ids_seq_length_"])
    assert not activations(estimator, ids).any()


@pytest.mark.slow
def test_tables_of_few_rows_on_other_cores(tmp_path):
    sizes = {"one": 1, "three": 3, "nine": 9}
    spec = tables.EmbeddingConfigSpec(
        optimization_parameters=tables.AdagradParameters(0.1),
        table_to_config_dict={
            name: tables.TableConfig(rows, 2) for name, rows in sizes.items()
        },
        feature_to_config_dict={
            f"of {name}": tables.FeatureConfig(name) for name in sizes
        },
    )
    ids = np.arange(BATCH * 2).reshape(BATCH, 2)
    features = {f"of {name}": ids % rows for name, rows in sizes.items()}

    def trained_by(name, use_tpu, steps):
        estimator = tables_estimator(spec, 6, tmp_path / name, use_tpu)
        estimator.train(input_of(features, LABELS), steps=steps)
        return in_checkpoint(estimator)

    want = trained_by("a", False, 3)
    for use_tpu in (True, False, True):
        got = trained_by("b", use_tpu, 1)
        for name, rows in sizes.items():
            assert got[name].shape == (rows, 2)
    for name in sizes:
        for path in (name, f"{name}/Adagrad"):
            np.testing.assert_allclose(got[path], want[path], atol=1e-6, err_msg=path)


@pytest.mark.parametrize(
    ("use_tpu", "made"),
    each_once(
        [True, False],
        [
            lambda shape, dtype=None: jnp.full(shape, 0.5, "bfloat16"),
            lambda shape, dtype=None: np.full(shape, 0.5, "float64"),
            lambda shape, dtype=None: [[0.5] * shape[1]] * shape[0],
        ],
    ),
)
def test_initializers_of_another_type(tmp_path, use_tpu, made):
    estimator = trained(
        spec_of(initializer=made), tmp_path, use_tpu, np.full((BATCH, 1), 3)
    )
    rows = in_checkpoint(estimator)["words"]
    assert rows.dtype == "float32"
    np.testing.assert_array_equal(np.delete(rows, 3, 0), np.full((12, 2), 0.5))


@on_cores
@pytest.mark.parametrize("shape", [(3, 2), (16, 2), (13,), (13, 1)])
def test_initializers_of_other_shapes(tmp_path, use_tpu, shape):
    spec = spec_of(initializer=lambda *args, **kwargs: np.ones(shape))
    with pytest.raises(ValueError, match=r"return rows of shape \(13, 2\)"):
        trained(spec, tmp_path, use_tpu, np.ones((BATCH, 1), "int32"))


@pytest.mark.parametrize(
    "returned", [None, np.ones(2, "float32"), np.ones((1, 2)), "0.1"]
)
def test_rates_must_be_numbers(tmp_path, returned):
    ids = np.ones((BATCH, 1), "int32")
    spec = spec_of(learning_rate_fn=lambda step: returned)
    with pytest.raises(ValueError, match="'words' must return a number"):
        trained(spec, tmp_path, True, ids)
    spec = spec_of()._replace(experimental_gradient_multiplier_fn=lambda step: returned)
    message = "experimental_gradient_multiplier_fn must return a number"
    with pytest.raises(ValueError, match=message):
        trained(spec, tmp_path, True, ids)


@pytest.fixture(scope="module")
def at_the_usual_rate(tmp_path_factory):
    """The rows of a table without its own rate."""
    ids = np.arange(BATCH)[:, None] % 13
    folder = tmp_path_factory.mktemp("usual")
    return in_checkpoint(trained(spec_of(), folder, True, ids))["words"]


@pytest.mark.rows(3)
@pytest.mark.parametrize(
    "rate", [0.1, np.float64(0.1), np.full(1, 0.1), jnp.full((1, 1), 0.1)]
)
def test_rates_of_one_element(tmp_path, rate, at_the_usual_rate):
    ids = np.arange(BATCH)[:, None] % 13
    spec = spec_of(learning_rate_fn=lambda step: rate)
    got = in_checkpoint(trained(spec, tmp_path, True, ids))
    np.testing.assert_allclose(got["words"], at_the_usual_rate, rtol=1e-6)
