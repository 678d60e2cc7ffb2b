"""Whether a graph is being built, where a `model_fn` of TF1 may be called."""

import contextlib
import contextvars
from collections.abc import Iterator

from keras_tpu_estimator.tf1 import internals
from keras_tpu_estimator.tf1.shims.giving_back import give_back

_is_building: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "is_building", default=False
)


@contextlib.contextmanager
def building() -> Iterator[None]:
    """Lets a `TF1ModelFn` be called in a `with` block: in a graph."""
    give_back()
    token = _is_building.set(True)
    try:
        with internals.whole_variables():
            yield
    finally:
        _is_building.reset(token)


def is_building() -> bool:
    """Whether the current code runs in a block of `building`."""
    return _is_building.get()
