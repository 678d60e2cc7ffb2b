"""A warning of a dtype policy that no layer of a `model_fn` has."""

import contextlib
import contextvars
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import keras

_called: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar(
    "called", default=None
)


@contextlib.contextmanager
def noted_in(policies: set[str]) -> Iterator[None]:
    """Adds the policy names of layers that are called in a `with` block.

    Args:
        policies: The set that the names are added to.
    """
    _watch_calls()
    token = _called.set(policies)
    try:
        yield
    finally:
        _called.reset(token)


def warn_unless(policy: str, policies: set[str]) -> None:
    """Warns if no layer has a policy.

    Args:
        policy: The name that `RunConfig.dtype_policy` has.
        policies: The names of the layers' policies.
    """
    if policy in policies:
        return
    warnings.warn(
        "`RunConfig.dtype_policy` must be the policy of at least one Keras "
        f"layer that `model_fn` calls. Received {policy!r}, which has no "
        f"effect: {_found(policies)}. Make layers in `model_fn`, or call "
        f"keras.config.set_dtype_policy({policy!r}) before you make them. In "
        "code without Keras layers, cast arrays and leave `dtype_policy` out.",
        UserWarning,
        stacklevel=2,
    )


def _found(policies: set[str]) -> str:
    if not policies:
        return "`model_fn` calls no layers"
    names = ", ".join(map(repr, sorted(policies)))
    return f"the layers have {names}"


@functools.cache
def _watch_calls() -> None:
    """Notes the policies of called layers from now on; once."""
    call = keras.layers.Layer.__call__

    @functools.wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        result = call(self, *args, **kwargs)
        policies = _called.get()
        if policies is not None:
            policies.add(self.dtype_policy.name)
        return result

    keras.layers.Layer.__call__ = __call__
