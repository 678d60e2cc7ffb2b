"""A warning about labels that broadcast to all pairs of examples."""

import warnings
from typing import Any

import jax

from keras_tpu_estimator.base.tracing.capture import Captured

# The lines that already caused the warning, as in Python's `warnings`.
_told: dict[Any, Any] = {}


def warn_of_label_shapes(forward: Captured, *args: Any) -> None:
    """Warns if labels and outputs are broadcast to a tensor of all pairs."""
    is_label = [
        number == 1 for number, nest in enumerate(args) for _ in jax.tree.leaves(nest)
    ]
    for each in forward.crossings(is_label):
        size = max(*each.labels, *each.outputs)
        warnings.warn_explicit(
            f"Labels of shape {each.labels} and outputs of shape "
            f"{each.outputs} give a tensor of shape {(size, size)}: each "
            "label with the output of each example. Expected equal shapes. "
            "Reshape one of them, as by labels[:, None] or outputs[:, 0]; or "
            "write labels[None, :] if you need all pairs.",
            UserWarning,
            each.file,
            each.line,
            registry=_told,
        )
