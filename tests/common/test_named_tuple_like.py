"""Tests that records behave like the original's named tuples."""

import copy
import dataclasses

import jax
import keras
import numpy as np
import pytest

import keras_tpu_estimator as kte

LOSS = np.float32(1.0)
# The original's fields in its order, then the additional fields.
FIELDS = {
    kte.TPUEstimatorSpec: (
        "mode predictions loss train_op eval_metrics export_outputs "
        "scaffold_fn host_call training_hooks evaluation_hooks "
        "prediction_hooks train_metrics"
    ),
    kte.EstimatorSpec: (
        "mode predictions loss train_op eval_metric_ops export_outputs "
        "training_chief_hooks training_hooks scaffold evaluation_hooks "
        "prediction_hooks host_call train_metrics"
    ),
    kte.TPUConfig: (
        "iterations_per_loop num_shards num_cores_per_replica "
        "per_host_input_for_training tpu_job_name initial_infeed_sleep_secs "
        "input_partition_dims eval_training_input_configuration "
        "experimental_host_call_every_n_steps "
        "experimental_allow_per_host_v2_parallel_get_next "
        "experimental_feed_hook"
    ),
}


def records():
    return [
        kte.TPUEstimatorSpec(kte.ModeKeys.EVAL, loss=LOSS),
        kte.EstimatorSpec(kte.ModeKeys.EVAL, loss=LOSS),
        kte.TPUConfig(100, num_shards=8),
    ]


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_fields_have_the_order_of_the_original(kind):
    assert kind._fields == tuple(FIELDS[kind].split())


@pytest.mark.parametrize("record", records(), ids=lambda r: type(r).__name__)
def test_record_is_read_by_position(record):
    values = tuple(getattr(record, name) for name in record._fields)
    assert len(record) == len(values)
    first, *rest = record
    assert (first, *rest) == values
    assert (record[0], record[-1]) == (values[0], values[-1])
    assert record[1:3] == values[1:3]
    assert list(record._asdict()) == list(record._fields)
    assert tuple(record._asdict().values()) == values
    assert type(record)(**record._asdict()) == record
    with pytest.raises(IndexError):
        record[len(values)]


def test_unpacking_a_spec():
    spec = kte.TPUEstimatorSpec(kte.ModeKeys.EVAL, loss=LOSS)
    mode, predictions, loss, *_ = spec
    assert (mode, predictions, loss) == ("eval", {}, LOSS)


@pytest.mark.parametrize("record", records(), ids=lambda r: type(r).__name__)
def test_record_is_one_leaf(record):
    assert jax.tree.leaves({"a": record}) == [record]
    assert keras.tree.flatten({"a": record}) == [record]
    assert not keras.tree.is_nested(record)


@pytest.mark.parametrize("record", records(), ids=lambda r: type(r).__name__)
def test_record_equals_only_records(record):
    assert record == dataclasses.replace(record)
    assert record != tuple(record)


def test_equal_configurations():
    config = kte.TPUConfig(100)
    assert copy.deepcopy(config) == config != kte.TPUConfig(10)
    assert hash(copy.deepcopy(config)) == hash(config)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_shards = 8


def test_replace_makes_a_validated_copy():
    config = kte.TPUConfig(100, num_shards=8)
    assert config._replace(num_shards=4) == kte.TPUConfig(100, num_shards=4)
    with pytest.raises(ValueError, match="fields of TPUConfig must exist"):
        config._replace(shards=4)
