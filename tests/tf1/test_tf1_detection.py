"""Tests that operations that select boxes match a session."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import estimator, fed, plain_session

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


def with_scores(boxes, scores):
    return tf.image.non_max_suppression_with_scores(boxes, scores, 6)[1]


def of_each_class(boxes, scores):
    return tf.image.combined_non_max_suppression(
        boxes[None, :, None], scores[None, :, None], 6, 6
    )[1][0]


@pytest.mark.parametrize(
    ("choose", "name"),
    [
        (with_scores, "NonMaxSuppressionV5"),
        (of_each_class, "CombinedNonMaxSuppression"),
        (
            lambda boxes, scores: tf.unique_with_counts(scores)[2],
            "UniqueWithCounts",
        ),
    ],
)
def test_operations_that_the_bridge_lacks_are_named(tmp_path, choose, name):
    def model_fn(features, labels, mode, params):
        made = choose(features[:, :4], features[:, 4])
        made = tf.cast(tf.reduce_sum(made), tf.float32) + features
        return kte.tf1.TPUEstimatorSpec(mode, predictions={"x": made})

    made = estimator(model_fn, tmp_path)
    with pytest.raises(ValueError, match=rf"\({name}\), made at {__file__}:"):
        next(made.predict(fed([boxes_data()])))
