"""Functions of `tf.contrib.layers` that tf_slim lacks."""

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf


def embed_sequence(
    ids: Any,
    vocab_size: int | None = None,
    embed_dim: int | None = None,
    unique: bool = False,
    initializer: Callable[..., Any] | None = None,
    regularizer: Callable[..., Any] | None = None,
    trainable: bool = True,
    scope: Any = None,
    reuse: Any = None,
) -> Any:
    """Maps ids to rows of an embedding table, the variable `embeddings`.

    Args:
        ids: Integers.
        vocab_size: The number of rows. Required for a new table.
        embed_dim: The number of columns. Required for a new table.
        unique: Whether to look up each row only once.
        initializer: The initializer of the table.
        regularizer: The regularizer of the table.
        trainable: Whether the table is trained.
        scope: The variable scope. Defaults to 'EmbedSequence'.
        reuse: Whether the table already exists.

    Raises:
        ValueError: Only one of the sizes is given, or none without `reuse`.
    """
    if not (reuse or (vocab_size and embed_dim)):
        raise ValueError(
            "`vocab_size` and `embed_dim` must be given, or `reuse` must be True. "
            f"Received: {vocab_size}, {embed_dim} and {reuse}."
        )
    with tf.variable_scope(scope, "EmbedSequence", [ids], reuse=reuse):
        shape = None if vocab_size is None else [vocab_size, embed_dim]
        table = tf.get_variable(
            "embeddings",
            shape,
            initializer=initializer,
            regularizer=regularizer,
            trainable=trainable,
        )
        if unique:
            return embedding_lookup_unique(table, ids)
        return tf.nn.embedding_lookup(table, ids)


def bow_encoder(
    ids: Any,
    vocab_size: int,
    embed_dim: int,
    sparse_lookup: bool = True,
    initializer: Callable[..., Any] | None = None,
    regularizer: Callable[..., Any] | None = None,
    trainable: bool = True,
    scope: Any = None,
    reuse: Any = None,
) -> Any:
    """Returns the mean of embedding rows, for each row of ids.

    Args:
        ids: Integers of `[batch, length]`.
        vocab_size: The number of rows of the embedding table.
        embed_dim: The number of columns of the table.
        sparse_lookup: Whether to skip ids of 0, which are padding. Defaults to `True`.
        initializer: The initializer of the table.
        regularizer: The regularizer of the table.
        trainable: Whether the table is trained.
        scope: The variable scope. Defaults to 'BowEncoder'.
        reuse: Whether the table already exists.
    """
    with tf.variable_scope(scope, "BowEncoder", [ids], reuse=reuse):
        table = tf.get_variable(
            "embeddings",
            [vocab_size, embed_dim],
            initializer=initializer,
            regularizer=regularizer,
            trainable=trainable,
        )
        ids = tf.convert_to_tensor(ids)
        rows = tf.nn.embedding_lookup(table, ids)
        if not sparse_lookup:
            return tf.reduce_mean(rows, axis=1)
        is_word = tf.cast(tf.not_equal(ids, 0), rows.dtype)
        count = tf.reduce_sum(is_word, axis=1, keepdims=True)
        total = tf.reduce_sum(rows * is_word[..., tf.newaxis], axis=1)
        # If a row contains only padding, its result is the first embedding.
        return tf.where_v2(count > 0, total / tf.maximum(count, 1.0), table[:1])


def embedding_lookup_unique(params: Any, ids: Any, name: Any = None) -> Any:
    """Looks up embedding rows. Devices need no special treatment of repeated ids.

    Args:
        params: The embedding table.
        ids: Integers.
        name: The name of the operation.
    """
    return tf.nn.embedding_lookup(params, ids, name=name)
