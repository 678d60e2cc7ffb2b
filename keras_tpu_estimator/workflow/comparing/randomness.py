"""Programs without dropout, so that two of them can be compared."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras_tpu_estimator.base.upstream import keras_random, tensorflow_names
from keras_tpu_estimator.workflow.comparing.records import RandomOperation


@contextlib.contextmanager
def switched_off(operations: dict[RandomOperation, None]) -> Iterator[None]:
    """Makes dropout pass on its input in a `with` block, and notes its rates."""

    def note(rate: Any) -> None:
        known = float(rate) if isinstance(rate, int | float) else None
        operations[RandomOperation("dropout", known, True)] = None

    with contextlib.ExitStack() as stack:
        stack.enter_context(keras_random.without_dropout(note))
        if "tensorflow" in sys.modules:
            stack.enter_context(tensorflow_names.without_dropout(note))
        yield


@contextlib.contextmanager
def gradients_noted(
    note: Callable[[Sequence[Any], Sequence[Any]], object],
) -> Iterator[None]:
    """Passes on the gradients that a graph computes in a `with` block."""
    if "tensorflow" not in sys.modules:
        yield
        return
    with tensorflow_names.gradients_reported(note):
        yield
