"""Tests where tensors without a batch axis are allowed."""

import keras
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - one of the kinds of input
from helpers import estimator_of, regression_data, squared_error
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.engine.inputs import datasets
from keras_tpu_estimator.engine.inputs.batch import Batch
from keras_tpu_estimator.engine.inputs.checks import BatchFinder
from keras_tpu_estimator.engine.inputs.unbatched import (
    Unbatched,
    joined_of_cores,
    map_batched,
    named_leaves,
)

PER_SHARD, PER_HOST_1, PER_HOST_2, BROADCAST, SLICED = list(kte.InputPipelineConfig)
X, Y = regression_data(examples=37)
TABLE = np.arange(20, dtype="float32").reshape(10, 2)


def with_table(x, table=TABLE):
    """Features with a table, a scalar and the examples, in this order."""
    return {"a_table": table, "rate": np.float32(0.5), "x": x}


def batches(params):
    """The batches of several steps, with a smaller last batch."""
    size = params["batch_size"]
    for start in range(0, len(X), size):
        rows = slice(start, start + size)
        yield with_table(X[rows]), Y[rows]


def as_dataset(params):
    return tf.data.Dataset.from_generator(
        lambda: batches(params),
        output_signature=(
            {
                "a_table": tf.TensorSpec((None, 2), tf.float32),
                "rate": tf.TensorSpec((), tf.float32),
                "x": tf.TensorSpec((None, 3), tf.float32),
            },
            tf.TensorSpec((None, 1), tf.float32),
        ),
    )


def stacked_by_tf(params):
    """Makes tf.data stack the batches, without a scalar."""
    without = as_dataset(params).map(
        lambda features, labels: (
            {name: features[name] for name in ("a_table", "x")},
            labels,
        )
    )
    return without.map(
        lambda features, labels: ({**features, "rate": labels * 0.5}, labels)
    )


def model_fn_of(seen):
    """A linear model that scales by a rate and by a sum over a table."""

    def model_fn(features, labels, mode, params):
        shapes = [features[name].shape for name in ("a_table", "rate", "x")]
        seen.append((*shapes, params["batch_size"]))
        scale = ops.sum(features["a_table"]) / 190
        outputs = keras.layers.Dense(1)(features["x"]) * scale
        if mode == kte.ModeKeys.PREDICT:
            rows = ops.ones_like(outputs) * features["rate"]
            return kte.TPUEstimatorSpec(mode, {"y": outputs, "rate": rows})
        loss = squared_error(outputs, labels)
        train_op = None
        if mode == kte.ModeKeys.TRAIN:
            optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
            train_op = optimizer.minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


@pytest.mark.parametrize("input_fn", [batches, as_dataset, stacked_by_tf])
def test_one_core_receives_complete_shared_tensors(tmp_path, monkeypatch, input_fn):
    monkeypatch.setattr(datasets, "_WORTH_STACKING", 0)
    seen = []
    estimator = estimator_of(model_fn_of(seen), tmp_path)
    estimator.train(input_fn)
    assert estimator.get_variable_value("global_step") == 3
    result = estimator.evaluate(input_fn)
    rows = list(estimator.predict(input_fn))
    kernel = estimator.get_variable_value("dense/kernel")
    y = X @ kernel + estimator.get_variable_value("dense/bias")
    np.testing.assert_allclose([row["y"] for row in rows], y, rtol=1e-4)
    np.testing.assert_allclose(result["loss"], np.mean((y - Y) ** 2), rtol=1e-4)
    assert {(table, x, size) for table, _, x, size in seen} == {
        ((10, 2), (16, 3), 16),
        ((10, 2), (5, 3), 5),
    }
    if input_fn is not stacked_by_tf:
        assert {rate for _, rate, _, _ in seen} == {()}
        assert {row["rate"].item() for row in rows} == {0.5}


def on_cores(seen, model_dir, way, batch=16, **settings):
    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(
            iterations_per_loop=2, per_host_input_for_training=way
        ),
        model_dir=str(model_dir),
        tf_random_seed=1,
        **settings,
    )
    return kte.TPUEstimator(
        model_fn_of(seen),
        config=config,
        train_batch_size=batch,
        eval_batch_size=batch,
        predict_batch_size=batch,
    )


def test_each_core_receives_a_complete_broadcast_tensor(tmp_path):
    seen = []
    estimator = on_cores(seen, tmp_path, BROADCAST)
    estimator.train(batches, steps=9)
    estimator.evaluate(batches)
    rows = list(estimator.predict(batches))
    assert {row["rate"].item() for row in rows} == {0.5}
    assert len(rows) == len(X)
    assert {(table, rate) for table, rate, _, _ in seen} == {((10, 2), ())}


def numbered(params):
    """Endless batches with different rates."""
    size = params["batch_size"]
    for number in range(16):
        features = with_table(X[:size], TABLE + number)
        yield features | {"rate": np.float32(number)}, Y[:size]


def test_each_core_receives_the_shared_tensor_of_its_batch(tmp_path):
    seen = []
    estimator = on_cores(seen, tmp_path, PER_HOST_2)
    estimator.train(numbered, steps=9)
    assert estimator.get_variable_value("global_step") == 2
    rows = list(estimator.predict(numbered))
    rates = [row["rate"].item() for row in rows]
    assert rates == [number for number in range(16) for _ in range(2)]
    assert set(seen) == {((10, 2), (), (2, 3), 2)}


def test_per_core_calls_may_have_shared_tensors(tmp_path):
    def input_fn(params):
        return with_table(X[:2]), Y[:2]

    seen = []
    on_cores(seen, tmp_path, PER_SHARD).train(input_fn, steps=2)
    assert set(seen) == {((10, 2), (), (2, 3), 2)}


def test_remainder_with_equal_shared_tensors_is_one_step(tmp_path):
    """37 rows in batches of two are two full steps and one step of five rows."""
    seen = []
    estimator = on_cores(seen, tmp_path, PER_HOST_2)
    loss = estimator.evaluate(batches)["loss"]
    assert set(seen) == {((10, 2), (), (2, 3), 2), ((10, 2), (), (5, 3), 5)}
    np.testing.assert_allclose(
        loss, on_cores([], tmp_path, PER_HOST_2, 8).evaluate(batches)["loss"]
    )


def test_remainder_with_different_shared_tensors_is_an_error():
    parts = [({"rate": Unbatched(np.float32(n))}, None) for n in range(2)]
    whole, _ = joined_of_cores(parts, cores=2)
    np.testing.assert_array_equal(whole["rate"].value, [0, 1])
    with pytest.raises(ValueError, match=r"features\['rate'\] must be equal"):
        joined_of_cores(parts, cores=3)


def test_cores_that_share_a_batch_need_the_axis(tmp_path):
    def input_fn(params):
        return {"rate": np.float32(1), "x": X[:16]}, Y[:16]

    with pytest.raises(ValueError, match=r"features\['rate'\].*scalar"):
        on_cores([], tmp_path, PER_HOST_1).train(input_fn, steps=1)


def test_micro_batches_need_the_axis(tmp_path):
    estimator = estimator_of(model_fn_of([]), tmp_path, config={"micro_batches": 2})
    with pytest.raises(ValueError, match=r"micro_batches=2 and .*\['rate'\]"):
        estimator.train(batches)


def test_only_scalars_are_an_error(tmp_path):
    estimator = estimator_of(model_fn_of([]), tmp_path)
    with pytest.raises(ValueError, match="At least one tensor must have the"):
        estimator.train(lambda params: {"rate": np.float32(1)}, steps=1)


def example(x, table, labels=None):
    features = {"table": np.zeros(table), "x": np.zeros((x, 3))}
    return Batch(features, labels)


@pytest.mark.parametrize(
    ("size", "shapes", "shared"),
    [
        (4, [(4, 9), (4, 9), (3, 9)], "table"),
        (4, [(4, 4), (3, 4)], None),  # The second batch shows which tensor changes.
        (None, [(4, 4)], ""),
        (9, [(4, 7)], "x"),  # The first length, if none equals the batch size.
    ],
)
def test_tensors_with_the_batch_axis_are_found(size, shapes, shared):
    finder = BatchFinder(size)
    found = [set(finder.shared_in(example(x, table))) for x, table in shapes]
    if shared is None:
        assert found == [set(), {"features['table']"}]
    else:
        expected = {f"features['{shared}']"} if shared else set()
        assert found == [expected] * len(shapes)


def test_most_frequent_length_is_the_batch_size():
    finder = BatchFinder(9)
    found = finder.shared_in(example(4, 7, np.zeros(4)))
    assert set(found) == {"features['table']"}


def test_images_may_have_the_batch_last():
    images, labels = np.zeros((6, 6, 3, 4)), np.zeros(4)
    found = BatchFinder(None).shared_in(Batch({"x": images}, labels))
    assert set(found) == {"features['x']"}
    found = BatchFinder(None).shared_in(Batch({"x": images[:4]}, labels))
    assert not found
    # A tensor without such an axis is a mistake that is reported later.
    found = BatchFinder(None).shared_in(Batch({"x": images[..., :3]}, labels))
    assert not found


def test_labels_have_the_batch_unless_scalar():
    finder = BatchFinder(4)
    assert not finder.shared_in(example(4, 4, np.zeros(3)))
    found = BatchFinder(4).shared_in(example(4, 4, np.zeros(())))
    assert set(found) == {"labels"}
    # Labels do not show which feature has changed.
    assert not finder.shared_in(example(4, 4, np.zeros(2)))


def test_changing_sequences_keep_the_batch_of_other_tensors():
    """The first batch has as many rows as its sequences have elements."""

    def batch_of(rows, length):
        features = {
            "ids": np.zeros((rows, length)),
            "mask": np.zeros((length, length)),
            "n": np.zeros(rows),
        }
        return Batch(features, np.zeros(rows))

    finder = BatchFinder(4)
    assert not finder.shared_in(batch_of(4, 4))
    assert finder.shared_in(batch_of(4, 6)) == {"features['mask']"}
    assert finder.shared_in(batch_of(4, 3)) == {"features['mask']"}
    other = BatchFinder(4)
    for rows, length in ((4, 7), (4, 5), (2, 5)):
        shared = other.shared_in(batch_of(rows, length))
        assert shared == {"features['mask']"}


def test_marks_of_shared_tensors_remain_in_pytrees():
    features = {"x": 1, "rate": Unbatched(2)}
    assert map_batched(lambda x: x + 1, features) == {"x": 2, "rate": Unbatched(2)}
    assert named_leaves(features, None) == [
        ("features['rate']", Unbatched(2)),
        ("features['x']", 1),
    ]
