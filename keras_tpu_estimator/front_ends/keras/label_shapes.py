"""A warning of labels whose shape makes a loss of all pairs of examples."""

import warnings
from typing import Any

import jax

from keras_tpu_estimator.ground.tracing.capture import Captured

# Which lines were told of already, as Python's warnings want it.
_told: dict[Any, Any] = {}


def warn_of_label_shapes(forward: Captured, *args: Any) -> None:
    """Warns where labels and outputs are broadcast to a tensor of all pairs.

    Args:
        forward: The trace of `model_fn`.
        *args: What it was traced with: features, labels, and others.
    """
    is_label = [
        number == 1
        for number, nest in enumerate(args)
        for _ in jax.tree.leaves(nest)
    ]
    for each in forward.crossings(is_label):
        size = max(*each.labels, *each.outputs)
        warnings.warn_explicit(
            f"Labels of shape {each.labels} and outputs of shape "
            f"{each.outputs} give a tensor of shape {(size, size)}: each label "
            "with the output of each example. Expected equal shapes. Reshape "
            "one of them, as by labels[:, None] or outputs[:, 0]; or write "
            "labels[None, :] if all pairs are meant.",
            UserWarning,
            each.file,
            each.line,
            registry=_told,
        )
