"""Tests that 64-bit integers are never truncated to the devices' 32 bits."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1.lift.truncation import CutIntegersError

IDS = np.array([[100_000], [3]], "int64")


def input_fn(params):
    return tf.data.Dataset.from_tensors({"i": IDS}).repeat(6)


@kte.tf1.model_fn
def model_fn(features, labels, mode, params):
    """Adds the step in `params` to an int64 variable."""
    ids = features["i"] + params["offset"]
    predictions = {"id": ids, "half": tf.cast(ids, tf.float64) / 2}
    if mode == "infer":
        return kte.tf1.TPUEstimatorSpec(mode, predictions=predictions)
    w = tf.get_variable("w", [])
    seen = tf.get_variable(
        "seen", [], tf.int64, tf.zeros_initializer(), trainable=False
    )
    step = tf.train.get_or_create_global_step()
    loss = tf.reduce_mean(w * w)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    count = tf.assign_add(seen, params["counts"])
    return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(count, train_op))


def made(folder, counts=1, offset=0, use_tpu=False):
    return kte.TPUEstimator(
        model_fn,
        config=kte.RunConfig(model_dir=str(folder)),
        params={"counts": counts, "offset": offset},
        use_tpu=use_tpu,
        train_batch_size=2,
        eval_batch_size=2,
        predict_batch_size=2,
    )


def test_variable_counts_up_to_the_largest_int32(tmp_path):
    estimator = made(tmp_path, counts=2**30 - 1)
    estimator.train(input_fn, steps=2)
    assert estimator.get_variable_value("seen") == 2**31 - 2
    assert estimator.get_variable_value("seen").dtype == "int64"


@pytest.mark.parametrize("counts", [2**30, -(2**31) - 1])
def test_overflowing_variable_stops_training(counts, tmp_path):
    estimator = made(tmp_path, counts=counts)
    with pytest.raises(CutIntegersError, match=r"in \['seen'\], which"):
        estimator.train(input_fn, steps=4)
    # No wrong value was saved.
    assert estimator.get_variable_value("seen") == 0


def test_predictions_have_the_dtypes_of_the_graph(tmp_path):
    made(tmp_path).train(input_fn, steps=1)
    few = made(tmp_path, offset=7)
    assert [row["id"].tolist() for row in few.predict(input_fn)][:2] == [
        [100_007],
        [10],
    ]
    row = next(few.predict(input_fn))
    assert (row["id"].dtype, row["half"].dtype) == ("int64", "float64")
    many = made(tmp_path, offset=5_000_000_000)
    with pytest.raises(CutIntegersError, match="must fit 32 bits"):
        next(many.predict(input_fn))


def test_initial_value_that_does_not_fit_is_refused(tmp_path):
    @kte.tf1.model_fn
    def with_large(features, labels, mode, params):
        step = tf.train.get_or_create_global_step()
        large = tf.get_variable("large", initializer=np.int64(3_000_000_000))
        loss = tf.reduce_mean(tf.cast(large, tf.float32))
        return kte.tf1.TPUEstimatorSpec(
            mode, loss=loss, train_op=tf.assign_add(step, 1)
        )

    estimator = kte.TPUEstimator(
        with_large,
        config=kte.RunConfig(model_dir=str(tmp_path)),
        use_tpu=False,
        train_batch_size=2,
    )
    with pytest.raises(ValueError, match="'large' must fit int32"):
        estimator.train(input_fn, steps=1)
