"""The linear map of `tf.contrib.rnn`, which was not public."""

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf


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
        shapes = [each.shape.with_rank(2).as_list() for each in tensors]
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
    made = Linear(args, output_size, bias, bias_initializer, kernel_initializer)
    return made(args)


def _listed(args: Any) -> list[Any]:
    """Returns one or several tensors as a list."""
    if args is None:
        return []
    return [*args] if tf.nest.is_nested(args) else [args]
