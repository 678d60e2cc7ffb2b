"""Functions of `tf.contrib.framework`."""

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf


def smart_cond(
    pred: Any,
    fn1: Callable[[], Any],
    fn2: Callable[[], Any],
    name: str | None = None,
) -> Any:
    """Calls one of two functions, in the graph only if it has to be.

    Args:
        pred: A boolean, a number or a tensor.
        fn1: Called if it is true.
        fn2: Called if it is not.
        name: Of the operation.

    Example:

    >>> smart_cond(True, lambda: "yes", lambda: "no")
    'yes'
    """
    known = tf.get_static_value(tf.convert_to_tensor(pred, name="pred"))
    if known is None:
        return tf.cond(pred, fn1, fn2, name=name)
    return fn1() if known else fn2()
