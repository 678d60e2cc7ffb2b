"""The difference of the inputs of two programs."""

from collections.abc import Iterator

import jax
import numpy as np

from keras_tpu_estimator.workflow.comparing.records import Batch


def input_difference(old: Batch, new: Batch) -> str | None:
    """Returns a sentence on the first difference of two batches, or `None`."""
    olds, news = dict(_leaves(old)), dict(_leaves(new))
    for name in sorted(olds.keys() | news.keys()):
        problem = _problem(olds.get(name), news.get(name))
        if problem is not None:
            return f"{name} {problem}."
    return None


def _leaves(batch: Batch) -> Iterator[tuple[str, np.ndarray]]:
    for part in ("features", "labels"):
        tree = getattr(batch, part)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            yield f"`{part}{jax.tree_util.keystr(path)}`", np.asarray(leaf)


def _problem(old: np.ndarray | None, new: np.ndarray | None) -> str | None:
    if old is None or new is None:
        return f"is only in the {'new' if old is None else 'old'} one"
    if old.dtype != new.dtype:
        return f"is {old.dtype} in the old one and {new.dtype} in the new one"
    if old.shape != new.shape:
        return f"has shape {old.shape} in the old one and {new.shape} in the new one"
    differs = old != new
    if old.dtype.kind == "f":
        differs &= ~(np.isnan(old) & np.isnan(new))
    if not np.any(differs):
        return None
    row = int(np.argwhere(differs)[0][0]) if old.ndim else 0
    return f"differs first in row {row} of the first batch"
