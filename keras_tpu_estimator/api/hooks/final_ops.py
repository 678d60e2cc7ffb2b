"""A hook that fetches values at the end of a call."""

from typing import Any

from keras_tpu_estimator.api.hooks.fetches import check_names, refuse_feed
from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import (
    LaterArgs,
    SessionRunContext,
    SessionRunHook,
)


class FinalOpsHook(SessionRunHook):
    """A hook that fetches values at the end of a call.

    Tensors of `model_fn` are those of the last step. The counterpart of
    `tf.compat.v1.train.FinalOpsHook`.

    Args:
        final_ops: A name, or a list, tuple or dict of names; `None` for
            nothing.
        final_ops_feed_dict: Must be `None`, because values cannot be fed.

    Raises:
        TypeError: `final_ops` is not a pytree of names.
        ValueError: `final_ops_feed_dict` is set.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> hook = kte.hooks.FinalOpsHook({"loss": "loss", "bias": "dense/bias"})
    >>> hook.final_ops_values is None
    True
    """

    allows_run_ahead = True

    def __init__(self, final_ops: Any, final_ops_feed_dict: None = None):
        if final_ops is not None:
            check_names("final_ops", final_ops)
        refuse_feed("final_ops_feed_dict", final_ops_feed_dict)
        self._final_ops = final_ops
        self._values: Any = None

    @property
    def final_ops_values(self) -> Any:
        """NumPy values in the pytree of `final_ops`; `None` before the end."""
        return self._values

    def begin(self) -> None:
        """Deletes the values of an earlier call."""
        self._values = None

    def before_run(self, run_context: SessionRunContext) -> LaterArgs:
        """Requests the values, because any run may be the last one."""
        del run_context
        return LaterArgs(self._final_ops)

    def end(self, session: Session) -> None:
        """Fetches them."""
        if self._final_ops is not None:
            self._values = session.run(self._final_ops)
