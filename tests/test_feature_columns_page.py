"""Tests the page about feature columns against TensorFlow 1.15's numbers."""

import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - the page uses tf.data
from helpers import estimator_of

import keras_tpu_estimator as kte
from docs.snippets import feature_columns as page

GOLDEN = pathlib.Path(__file__).parent / "tf1" / "golden"
COLUMNS = json.loads((GOLDEN / "columns.json").read_text())
EXPECTED = COLUMNS["columns"]


PAGE = pathlib.Path(page.__file__).parents[1] / "feature_columns.md"


def test_page_names_all_columns_and_variables() -> None:
    text = PAGE.read_text()
    assert [n for n in COLUMNS["names"] if f"`{n}`" not in text] == []


@pytest.fixture(scope="module")
def ids():
    """The features of a `model_fn`."""
    features = {
        name: tf.constant(values) for name, values in COLUMNS["features"].items()
    }
    return {name: each.numpy() for name, each in page.ids_of(features).items()}


@pytest.mark.parametrize(
    ("name", "count"),
    [("city", 6), ("city_X_color", 20), ("color", 5), ("word", 10), ("zip", 7)],
)
def test_ids_match_the_original(name, count, ids) -> None:
    counts = page.indicator(ids[name], count)
    np.testing.assert_array_equal(counts, EXPECTED[f"indicator_{name}"])


def test_vocabulary_file_equals_its_list_of_words() -> None:
    assert EXPECTED["indicator_file"] == EXPECTED["indicator_color"]


def test_unlisted_words_are_missing() -> None:
    colors = tf.constant(COLUMNS["features"]["color"])
    counts = page.indicator(page.listed(colors, page.COLORS).numpy(), 3)
    np.testing.assert_array_equal(counts, EXPECTED["indicator_known"])


def test_boundaries_bucketize_numbers() -> None:
    age = np.array(COLUMNS["features"]["age"])
    counts = page.indicator(page.bucketized(age, [25, 40]), 3)
    np.testing.assert_array_equal(counts, EXPECTED["bucketized"])


@pytest.mark.parametrize("combiner", ["mean", "sqrtn", "sum"])
def test_rows_are_combined(combiner, ids) -> None:
    table = keras.ops.array(COLUMNS["table"])
    rows = page.combined(table, ids["word"], combiner)
    np.testing.assert_allclose(rows, EXPECTED[f"embedding_{combiner}"], 1e-5)
    weights = np.array(COLUMNS["features"]["share"], "float32")
    pairs = np.array(COLUMNS["features"]["pair"])
    rows = page.combined(table, pairs, combiner, weights)
    np.testing.assert_allclose(rows, EXPECTED[f"weighted_{combiner}"], 1e-5)


def test_layer_reads_variables_of_the_original(ids, tmp_path) -> None:
    def model_fn(features, labels, mode, params):
        layer = page.input_layer(features)
        names.extend(each.path for each in kte.trainable_variables())
        return kte.TPUEstimatorSpec(mode, predictions={"layer": layer})

    def input_fn(params):
        yield ids

    names: list[str] = []
    old = {"input_layer": {"word_embedding": {}}}
    old["input_layer"]["word_embedding"]["embedding_weights"] = np.array(
        COLUMNS["table"], "float32"
    )
    estimator = estimator_of(model_fn, tmp_path, warm_start_from=old)
    layers = [each["layer"] for each in estimator.predict(input_fn)]
    assert {*names} == {*COLUMNS["variables"]}
    np.testing.assert_allclose(layers, COLUMNS["together"], 1e-5)
