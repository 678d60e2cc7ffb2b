"""What used to feed values into every run."""

from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.spec.hooks.fetches import refuse_feed
from keras_tpu_estimator.spec.hooks.session_run_hook import SessionRunHook


class FeedFnHook(SessionRunHook):
    """Says, when it is made, what to do instead of feeding.

    A device loop is compiled as a whole, and takes what `input_fn` yields. The
    name is here so that old programs fail with an explanation. What such a
    hook did, `input_fn` can do: add the value to the features of each batch.

    Args:
        feed_fn: The function that returned what to feed.

    Raises:
        ValueError: Always.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> kte.hooks.FeedFnHook(lambda: {"rate": 0.1})
    Traceback (most recent call last):
        ...
    ValueError: `feed_fn` should be None. Received: ...

    Reference: `tf.compat.v1.train.FeedFnHook`.
    """

    def __init__(self, feed_fn: Callable[[], Any] | None):
        refuse_feed("feed_fn", feed_fn or "nothing")
