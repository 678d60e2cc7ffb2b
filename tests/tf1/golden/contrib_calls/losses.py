"""Calls of `tf.contrib.losses`."""

import tensorflow.compat.v1 as tf

from contrib_calls.calling import x

CLASSES = [0, 1, 1, 0, 2, 2]


def _of_numbers(name, *arguments):
    """Returns a call with a loss, its gradient, and its collection."""

    def call(contrib):
        given = x(4, 3)
        made = getattr(contrib.losses, name)(
            given, tf.abs(x(4, 3, start=2.0)), *arguments
        )
        gradient = tf.gradients(made, given)
        return [made, gradient, contrib.losses.get_losses()]

    return call


def _of_embeddings(make):
    def call(contrib):
        given = x(6, 3)
        made = make(contrib.losses.metric_learning, given)
        return [made, tf.gradients(made, given)]

    return call


def _total(contrib):
    contrib.losses.add_loss(x(), loss_collection=tf.GraphKeys.LOSSES)
    tf.get_variable("v", [3], regularizer=contrib.layers.l2_regularizer(0.1))
    return [
        contrib.losses.get_losses(),
        contrib.losses.get_regularization_losses(),
        contrib.losses.get_total_loss(),
    ]


def _several_labels():
    return [tf.SparseTensor([[0, each % 2]], [1], [1, 3]) for each in CLASSES]


CALLS = {
    "absolute_difference": _of_numbers("absolute_difference"),
    "add_loss": _total,
    "cluster_loss": _of_embeddings(
        lambda m, given: m.cluster_loss(tf.constant(CLASSES), given, 1.0)
    ),
    "compute_weighted_loss": _of_numbers("compute_weighted_loss"),
    "contrastive_loss": _of_embeddings(
        lambda m, given: m.contrastive_loss(
            tf.constant(CLASSES) % 2, given, x(6, 3, start=2.0)
        )
    ),
    "cosine_distance": _of_numbers("cosine_distance", 1),
    "hinge_loss": lambda c: c.losses.hinge_loss(
        x(4, 1), tf.constant([[0.0], [1.0], [1.0], [0.0]])
    ),
    "lifted_struct_loss": _of_embeddings(
        lambda m, given: m.lifted_struct_loss(tf.constant(CLASSES), given)
    ),
    "log_loss": lambda c: c.losses.log_loss(
        tf.abs(x(4, 3)), tf.abs(x(4, 3, start=2.0))
    ),
    "mean_pairwise_squared_error": _of_numbers("mean_pairwise_squared_error"),
    "mean_squared_error": _of_numbers("mean_squared_error"),
    "npairs_loss": _of_embeddings(
        lambda m, given: m.npairs_loss(tf.constant(CLASSES), given, x(6, 3, start=2.0))
    ),
    "npairs_loss_multilabel": _of_embeddings(
        lambda m, given: m.npairs_loss_multilabel(
            _several_labels(), given, x(6, 3, start=2.0)
        )
    ),
    "sigmoid_cross_entropy": _of_numbers("sigmoid_cross_entropy"),
    "softmax_cross_entropy": _of_numbers("softmax_cross_entropy"),
    "sparse_softmax_cross_entropy": lambda c: c.losses.sparse_softmax_cross_entropy(
        x(6, 3), tf.constant(CLASSES, tf.int64)
    ),
    "triplet_semihard_loss": _of_embeddings(
        lambda m, given: m.triplet_semihard_loss(
            tf.constant(CLASSES), tf.nn.l2_normalize(given, 1)
        )
    ),
}
# Losses call this function.
ALIASES = {
    "get_losses": "add_loss",
    "get_regularization_losses": "add_loss",
    "get_total_loss": "add_loss",
}
