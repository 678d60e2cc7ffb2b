"""Tests ids that are padded to the longest row of each batch."""

import numpy as np
import pytest
from dense_tables import ids_of, in_checkpoint, tables, tables_estimator

SPEC = tables.EmbeddingConfigSpec(
    table_to_config_dict={"words": tables.TableConfig(37, 3)},
    feature_to_config_dict={"title": tables.FeatureConfig("words")},
    optimization_parameters=tables.AdagradParameters(0.1),
)
BATCH = 32


def padded(*lengths):
    """Batches in which all ids after the fifth are padding."""

    def input_fn(params):
        rng = np.random.default_rng(5)
        for length in lengths:
            ids = np.full((BATCH, length), -1, "int32")
            ids[:, :5] = ids_of(rng, 37, BATCH)
            yield {"title": ids}, rng.normal(size=BATCH).astype("float32")

    return input_fn


@pytest.mark.rows(1)
@pytest.mark.parametrize("use_tpu", [False, True])
def test_lengths_of_ids_may_change(tmp_path, use_tpu):
    one = tables_estimator(SPEC, 3, tmp_path / "one", use_tpu)
    one.train(padded(*[7] * 5), steps=5)
    many = tables_estimator(SPEC, 3, tmp_path / "many", use_tpu)
    many.train(padded(5, 7, 7, 6, 7), steps=5)
    own, others = in_checkpoint(many), in_checkpoint(one)
    assert own.keys() == others.keys()
    for name, value in own.items():
        np.testing.assert_allclose(value, others[name], rtol=1e-5, err_msg=name)
    assert one.evaluate(padded(5, 6, 7)) == pytest.approx(
        one.evaluate(padded(7, 7, 7)), rel=1e-5
    )
    rows, wanted = (
        np.stack([row["y"] for row in one.predict(padded(*lengths))])
        for lengths in ((5, 6, 7), (7, 7, 7))
    )
    np.testing.assert_allclose(rows, wanted, rtol=1e-5)
