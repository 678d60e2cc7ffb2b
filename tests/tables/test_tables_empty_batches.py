"""Tests that tables ignore batches without examples."""

import numpy as np
from dense_tables import BATCH, ids_of, in_checkpoint, tables, tables_estimator

SIZE = 3


def spec():
    return tables.EmbeddingConfigSpec(
        table_to_config_dict={"words": tables.TableConfig(37, SIZE)},
        feature_to_config_dict={"title": tables.FeatureConfig("words")},
        optimization_parameters=tables.AdagradParameters(0.1),
    )


def batches(*sizes):
    rng = np.random.default_rng(5)
    titles = ids_of(rng, 37, sum(sizes))
    labels = rng.normal(size=len(titles)).astype("float32")

    def input_fn(params):
        start = 0
        for size in sizes:
            rows = slice(start, start + size)
            yield {"title": titles[rows]}, labels[rows]
            start += size

    return input_fn


def test_empty_batches_do_not_change_tables(tmp_path):
    sizes = (0, BATCH, 0, 0, BATCH, 0)
    full = tables_estimator(spec(), SIZE, tmp_path / "full")
    full.train(batches(BATCH, BATCH), max_steps=5)
    empty = tables_estimator(spec(), SIZE, tmp_path / "empty")
    empty.train(batches(*sizes), max_steps=5)
    want, got = in_checkpoint(full), in_checkpoint(empty)
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)
    expected = full.evaluate(batches(BATCH, BATCH))
    assert empty.evaluate(batches(*sizes)) == expected
    features = [f for f, _ in batches(*sizes)({})]
    answers = empty.predict(lambda params: iter(features), yield_single_examples=False)
    assert [len(answer["y"]) for answer in answers] == list(sizes)
