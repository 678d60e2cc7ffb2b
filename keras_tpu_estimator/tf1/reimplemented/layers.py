"""Functions of `tf.contrib.layers` that tf_slim has not."""

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
    """Maps ids to rows of a table, the variable `embeddings`.

    Args:
        ids: Integers.
        vocab_size: Rows of the table; needed where it is made.
        embed_dim: Columns of the table; needed where it is made.
        unique: Whether each row is looked up once.
        initializer: Of the table.
        regularizer: Of the table.
        trainable: Whether it is trained.
        scope: The variable scope. Defaults to 'EmbedSequence'.
        reuse: Whether there is one already.

    Raises:
        ValueError: Only one of the sizes is given, or none without `reuse`.
    """
    if not (reuse or (vocab_size and embed_dim)):
        raise ValueError(
            "`vocab_size` and `embed_dim` should be given, or `reuse` be True. "
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
    """The mean of the rows of a table that a row of ids names.

    Args:
        ids: `[batch, length]` of integers.
        vocab_size: Rows of the table.
        embed_dim: Columns of the table.
        sparse_lookup: Whether ids of 0 are left out, as padding is. Defaults
            to `True`.
        initializer: Of the table.
        regularizer: Of the table.
        trainable: Whether it is trained.
        scope: The variable scope. Defaults to 'BowEncoder'.
        reuse: Whether there is a table already.
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
        # The row of what is nothing but padding is the first one.
        return tf.where_v2(count > 0, total / tf.maximum(count, 1.0), table[:1])


def embedding_lookup_unique(params: Any, ids: Any, name: Any = None) -> Any:
    """Looks rows up, which on a device is done in one go anyway.

    Args:
        params: The table.
        ids: Integers.
        name: Of the operation.
    """
    return tf.nn.embedding_lookup(params, ids, name=name)
