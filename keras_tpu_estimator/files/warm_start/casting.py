"""Values of a checkpoint in the dtypes of a model's variables.

One rule for whatever takes values from a checkpoint: a kind of number goes
into itself and into larger ones (booleans, integers, floating-point and complex
numbers), as long as each value does. Fractions are rounded; nothing is cut off,
wraps around, or becomes infinite.
"""

import ml_dtypes
import numpy as np

_KINDS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


def cast(
    value: np.ndarray, dtype: np.dtype, path: str, name: str, checkpoint: str
) -> np.ndarray:
    """A value of a checkpoint in a variable's dtype.

    Args:
        value: The value.
        dtype: The dtype.
        path: The variable's path.
        name: What the value is called in the checkpoint.
        checkpoint: The checkpoint.

    Returns:
        The value itself, if it has the dtype.

    Raises:
        ValueError: The dtype cannot hold it.

    Example:

    >>> import numpy as np
    >>> cast(np.array([0.1]), np.dtype("float32"), "a", "b", "model.ckpt-20")
    array([0.1], dtype=float32)
    """
    result = converted(value, dtype)
    if result is not None:
        return result
    raise ValueError(
        f"The variable {path!r} is of dtype {dtype}, which cannot hold the "
        f"{value.dtype} values of {name!r} in the checkpoint {checkpoint!r}. "
        "Give it a dtype that can in model_fn, or start without this one's "
        "value: in another model_dir, or from other names."
    )


def converted(value: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Returns a value in another dtype, or `None` if that cannot hold it.

    Args:
        value: The value. It is returned itself if it has the dtype.
        dtype: The dtype.

    Example:

    >>> import numpy as np
    >>> converted(np.array([1, 300]), np.dtype("uint8")) is None
    True
    """
    value = np.asarray(value)
    if value.dtype == dtype:
        return value
    if can_hold(dtype, value.dtype):
        # What does not go in is looked for below.
        with np.errstate(over="ignore", invalid="ignore"):
            result = value.astype(dtype)
        if _is_same(result, value):
            return result
    return None


def can_hold(dtype: np.dtype, other: np.dtype) -> bool:
    """Whether a dtype is of a kind that can hold numbers of another.

    Args:
        dtype: That of a variable.
        other: That of values.

    Example:

    >>> import numpy as np
    >>> can_hold(np.dtype("bfloat16"), np.dtype("int8"))
    True
    >>> can_hold(np.dtype("int8"), np.dtype("bfloat16"))
    False
    """
    kind, others = _kind(dtype), _kind(other)
    return kind is not None and others is not None and others <= kind


def _kind(dtype: np.dtype) -> int | None:
    """A number, larger for larger kinds; `None` if it is no number's."""
    # NumPy says 2 of dtypes of another package, of which it knows no kind.
    if dtype.isbuiltin != 2:
        return _KINDS.get(dtype.kind)
    try:
        ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        return _KINDS["f"]
    return _KINDS["i"]


def _is_same(result: np.ndarray, value: np.ndarray) -> bool:
    """Whether values are what they were, but for rounding."""
    if _kind(result.dtype) == _KINDS["i"]:
        return np.array_equal(result, value)
    return np.array_equal(np.isfinite(result), np.isfinite(value))
