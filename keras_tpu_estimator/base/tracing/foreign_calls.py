"""Calls of other frameworks in traced code, which an optional part explains."""

import contextlib

from keras_tpu_estimator.base.common import registry

_PART = "foreign_calls"


def rejected() -> contextlib.AbstractContextManager[None]:
    """Rejects such calls in code that is traced in a `with` block."""
    part = registry.find(_PART)
    block: contextlib.AbstractContextManager[None]
    block = contextlib.nullcontext() if part is None else part.rejected()
    return block


def with_advice() -> contextlib.AbstractContextManager[None]:
    """Explains errors of such calls in code that runs in a `with` block."""
    part = registry.find(_PART)
    block: contextlib.AbstractContextManager[None]
    block = contextlib.nullcontext() if part is None else part.with_advice()
    return block


def are_detectable() -> bool:
    """Returns whether `rejected` would now detect all such calls."""
    part = registry.find(_PART)
    return part is not None and bool(part.are_detectable())
