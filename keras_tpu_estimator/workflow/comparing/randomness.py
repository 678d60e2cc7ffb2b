"""Programs without dropout, so that two of them can be compared."""

import contextlib
import numbers
import sys
from collections.abc import Callable, Iterator
from typing import Any

from keras_tpu_estimator.base.upstream import keras_random, tensorflow_names


@contextlib.contextmanager
def without_dropout(rates: dict[float | None, None]) -> Iterator[None]:
    """Makes dropout return its input in a `with` block, and notes its rates.

    A rate that is a tensor is noted as `None`.
    """

    def note(rate: Any) -> None:
        rates[float(rate) if isinstance(rate, numbers.Real) else None] = None

    with contextlib.ExitStack() as stack:
        stack.enter_context(keras_random.without_dropout(note))
        if "tensorflow" in sys.modules:
            stack.enter_context(tensorflow_names.without_dropout(note))
        yield


@contextlib.contextmanager
def gradients_noted(
    note: Callable[..., object],
) -> Iterator[None]:
    """Passes variables and their gradients in a graph to `note` in a `with` block."""
    if "tensorflow" not in sys.modules:
        yield
        return
    with tensorflow_names.gradients_reported(note):
        yield
