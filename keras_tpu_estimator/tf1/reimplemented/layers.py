"""Functions of `tf.contrib.layers` and `tf.contrib.rnn` that tf_slim lacks."""

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
    """Returns the mean of embedding rows for each row of ids.

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


class Linear:
    """A kernel, and optionally a bias, for concatenated tensors.

    Args:
        args: One or several tensors of `[batch, size]`, which define the sizes.
        output_size: The number of columns of the result.
        build_bias: Whether there is a bias.
        bias_initializer: The initializer of the bias. Defaults to zeros.
        kernel_initializer: The initializer of the kernel. Defaults to that of the
            variable scope.

    Raises:
        ValueError: There is no tensor, or one has other axes or an unknown size.
    """

    def __init__(
        self,
        args: Any,
        output_size: int,
        build_bias: bool,
        bias_initializer: Callable[..., Any] | None = None,
        kernel_initializer: Callable[..., Any] | None = None,
    ):
        tensors = _listed(args)
        shapes = [tensor.shape.with_rank(2).as_list() for tensor in tensors]
        sizes = [size for _, size in shapes]
        if not sizes or None in sizes:
            raise ValueError(
                "`args` must be tensors of [batch, size] with known sizes. "
                f"Received the shapes {shapes}."
            )
        dtype = tensors[0].dtype
        self._kernel = tf.get_variable(
            "kernel",
            [sum(sizes), output_size],
            dtype=dtype,
            initializer=kernel_initializer,
        )
        self._bias = None
        if build_bias:
            with tf.variable_scope(tf.get_variable_scope()) as scope:
                scope.set_partitioner(None)
                self._bias = tf.get_variable(
                    "bias",
                    [output_size],
                    dtype=dtype,
                    initializer=bias_initializer or tf.zeros_initializer(),
                )

    def __call__(self, args: Any) -> Any:
        """Returns the concatenated tensors times the kernel.

        Args:
            args: Tensors of the sizes with which the object was made.
        """
        product = tf.matmul(tf.concat(_listed(args), 1), self._kernel)
        if self._bias is None:
            return product
        return tf.nn.bias_add(product, self._bias)


def linear(
    args: Any,
    output_size: int,
    bias: bool,
    bias_initializer: Callable[..., Any] | None = None,
    kernel_initializer: Callable[..., Any] | None = None,
) -> Any:
    """Applies a new `Linear` to tensors.

    Args:
        args: As in `Linear`, as are all other arguments.
        output_size: See there.
        bias: See there.
        bias_initializer: See there.
        kernel_initializer: See there.
    """
    layer = Linear(args, output_size, bias, bias_initializer, kernel_initializer)
    return layer(args)


def _listed(args: Any) -> list[Any]:
    """Returns one or several tensors as a list."""
    if args is None:
        return []
    return [*args] if tf.nest.is_nested(args) else [args]
