"""Batch normalization of tf-keras whose `_moments` a script of 2018 overrides.

At that time the method had no `mask`, which tf-keras now passes to it.
"""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

_MODULE = "tf_keras.src.layers.normalization.batch_normalization"
_NAME = "_moments"


def accept_overrides_without_mask() -> None:
    """Calls overrides of `_moments` in subclasses with the arguments that they accept.

    Other classes do not change. Another call has no effect.

    Example:

    >>> accept_overrides_without_mask()
    >>> import tf_keras
    >>> class Own(tf_keras.layers.BatchNormalization):
    ...     def _moments(self, inputs, reduction_axes, keep_dims):
    ...         return "mean", "variance"
    >>> Own()._moments(None, [0], keep_dims=False, mask=None)
    ('mean', 'variance')
    """
    base = importlib.import_module(_MODULE).BatchNormalizationBase
    if "__init_subclass__" in vars(base):
        return

    def adapt(cls: type, /, **kwargs: Any) -> None:
        super(base, cls).__init_subclass__(**kwargs)
        own = vars(cls).get(_NAME)
        if inspect.isfunction(own) and not _takes_mask(own):
            setattr(cls, _NAME, _without_mask(own))

    base.__init_subclass__ = classmethod(adapt)


def _takes_mask(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters
    kinds = {each.kind for each in parameters.values()}
    return "mask" in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _without_mask(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def moments(*args: Any, mask: Any = None, **kwargs: Any) -> Any:
        if mask is not None:
            raise TypeError(
                f"`{function.__qualname__}` must accept `mask`, because the "
                "input of the layer has a mask. Add `mask=None` to its "
                "parameters."
            )
        return function(*args, **kwargs)

    return moments
