"""Tests that operations that select boxes match a session."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import estimator, fed, plain_session

from keras_tpu_estimator.tf1 import spec
from keras_tpu_estimator.tf1_tools import tf_estimator

COUNT = 16


def boxes_data():
    """Overlapping boxes with scores."""
    rng = np.random.default_rng(0)
    corner = rng.uniform(0, 0.5, (COUNT, 2))
    size = rng.uniform(0.2, 0.5, (COUNT, 2))
    scores = rng.permutation(COUNT)[:, None] / COUNT
    return np.concatenate([corner, corner + size, scores], 1).astype("float32")


def suppressed(boxes, scores):
    """The scores of the kept boxes, up to the maximum number."""
    kept, count = tf.image.non_max_suppression_padded(
        boxes, scores, 6, 0.4, pad_to_max_output_size=True
    )
    is_kept = tf.range(6) < count
    chosen = tf.gather(scores, kept)
    return tf.where(is_kept, chosen, tf.zeros([6]))


CHOSEN = {
    "the best": lambda boxes, scores: tf.nn.top_k(scores, 5),
    "in order": lambda boxes, scores: tf.gather(boxes, tf.argsort(scores)),
    "suppressed, padded": suppressed,
    "suppressed, on the way": lambda boxes, scores: tf.reduce_sum(
        tf.gather(scores, tf.image.non_max_suppression(boxes, scores, 6, 0.4))
    ),
    "where": lambda boxes, scores: tf.reduce_sum(
        tf.gather(boxes, tf.where(scores > 0.5)[:, 0]), 0
    ),
    "masked": lambda boxes, scores: tf.reduce_mean(
        tf.boolean_mask(boxes, scores > 0.5)
    ),
    "by classes": lambda boxes, scores: tf.unique(tf.cast(scores * 4, tf.int32))[1],
    "in segments": lambda boxes, scores: tf.unsorted_segment_max(
        scores, tf.cast(boxes[:, 0] * 4, tf.int32), 3
    ),
}


def chosen(data):
    """All outputs of the selection of boxes."""
    boxes, scores = data[:, :4], data[:, 4]
    return {
        f"{name} {number}": tf.cast(tensor, tf.float32)
        for name, choose in CHOSEN.items()
        for number, tensor in enumerate(tf.nest.flatten(choose(boxes, scores)))
    }


def test_box_selection_matches_a_session(tmp_path):
    def model_fn(features, labels, mode, params):
        repeated = {
            name: tf.tile(tensor[None], [COUNT] + [1] * tensor.shape.rank)
            for name, tensor in chosen(features).items()
        }
        return kte.tf1.TPUEstimatorSpec(mode, predictions=repeated)

    data = boxes_data()
    made = estimator(model_fn, tmp_path)
    found = next(made.predict(fed([data])))
    with tf.Graph().as_default(), plain_session() as session:
        expected = session.run(chosen(tf.constant(data)))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, err_msg=name)


def test_operations_that_the_bridge_lacks_are_named(tmp_path):
    def model_fn(features, labels, mode, params):
        counts = tf.unique_with_counts(features[:, 4])[2]
        made = tf.cast(tf.reduce_sum(counts), tf.float32) + features
        return kte.tf1.TPUEstimatorSpec(mode, predictions={"x": made})

    made = estimator(model_fn, tmp_path)
    place = rf"\(UniqueWithCounts\), made at {__file__}:"
    with pytest.raises(ValueError, match=place):
        next(made.predict(fed([boxes_data()])))


def test_the_host_suppresses_boxes_for_metrics_and_predictions(tmp_path):
    rng = np.random.RandomState(0)
    corners = rng.rand(8, 6, 2).astype("float32")
    boxes = np.concatenate([corners, corners + 0.5], -1)
    scores = rng.rand(8, 6).astype("float32")

    def model_fn(features, labels, mode):
        w = tf.get_variable("w", [6], initializer=tf.ones_initializer())
        weighted = features["s"] * w
        found = [
            tf.raw_ops.NonMaxSuppressionV5(
                boxes=features["b"][row],
                scores=weighted[row],
                max_output_size=4,
                iou_threshold=0.3,
                score_threshold=0.0,
                soft_nms_sigma=0.0,
                pad_to_max_output_size=True,
            )
            for row in range(4)
        ]
        indices, kept = (tf.stack([each[k] for each in found]) for k in range(2))
        if mode == "infer":
            predictions = {"indices": indices, "kept": kept}
            return spec.EstimatorSpec(mode, predictions=predictions)
        total = tf.reduce_sum(weighted, 1, keepdims=True)
        loss = tf.reduce_mean(tf.square(total - labels))
        optimizer = tf.train.GradientDescentOptimizer(0.01)
        return spec.EstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss, tf.train.get_global_step()),
            eval_metric_ops={"kept": tf.metrics.mean(kept)},
        )

    def input_fn():
        data = {"b": boxes, "s": scores}, scores[:, :1]
        return tf.data.Dataset.from_tensor_slices(data).batch(4)

    made = tf_estimator.Estimator(model_fn, str(tmp_path))
    made.train(input_fn)
    evaluated = made.evaluate(input_fn)
    predicted = [*made.predict(input_fn)]
    # The values of TensorFlow 1.15.
    np.testing.assert_allclose(evaluated["loss"], 7.029369, rtol=1e-6)
    np.testing.assert_allclose(evaluated["kept"], 0.52372015, rtol=1e-6)
    chosen_first = [each["indices"].tolist() for each in predicted[:3]]
    assert chosen_first == [[2, 4, 0, 0], [1, 0, 4, 2], [1, 4, 5, 0]]
    total = np.sum([each["kept"] for each in predicted])
    np.testing.assert_allclose(total, 16.759045, rtol=1e-6)
