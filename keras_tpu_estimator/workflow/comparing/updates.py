"""Explanations of different updates by equal gradients."""

import numpy as np

# A multiple explains a difference if at most this part of it is left.
_LEFT = 0.05


def explanation(
    before: np.ndarray, old_after: np.ndarray, new_after: np.ndarray
) -> str:
    """Returns what a variable's updates by two optimizers have in common.

    Args:
        before: Its value before the step, equal in both programs.
        old_after: Its value after the step of the old program.
        new_after: The same of the new program.
    """
    start, old, new = (
        np.asarray(a, np.float64).reshape(-1) for a in (before, old_after, new_after)
    )
    old, new = old - start, new - start
    if not np.any(old) or not np.any(new):
        changed = "new" if np.any(new) else "old"
        return (
            f"Only the {changed} program changes it: compare which variables are "
            "trained, and the values that `model_fn` assigns."
        )
    if old.size == 1:
        # Any two numbers are multiples of each other.
        return (
            "Its updates differ: compare the learning rate, what scales gradients, and "
            "the weight decay with the variables that are excluded from it."
        )
    factor = multiple(old, new)
    if factor is not None:
        return (
            f"Its update is {factor:.4g} times that of the old program: compare the "
            "learning rate, its schedule, and what scales gradients."
        )
    decay = new - old
    coefficient = float(decay @ start / (start @ start)) if np.any(start) else 0.0
    if np.linalg.norm(decay - coefficient * start) <= _LEFT * np.linalg.norm(decay):
        return (
            f"The updates differ by {coefficient:.3g} times its value: compare the "
            "weight decay, and the variables that are excluded from it."
        )
    return (
        "The updates are no multiples of each other: compare the optimizer's epsilon, "
        "its decay rates, bias correction, clipping and weight decay."
    )


def multiple(old: np.ndarray, new: np.ndarray) -> float | None:
    """Returns the factor by which two arrays differ, or `None` if it is no factor.

    >>> multiple(np.array([1.0, 2.0]), np.array([2.0, 4.0]))
    2.0
    """
    old, new = (np.asarray(a, np.float64).reshape(-1) for a in (old, new))
    if old.size != new.size or not np.any(old):
        return None
    factor = float(new @ old / (old @ old))
    gap = np.linalg.norm(new - factor * old)
    is_multiple = gap <= _LEFT * abs(factor - 1.0) * np.linalg.norm(old)
    return factor if is_multiple else None
