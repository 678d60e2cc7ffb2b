"""Values of a checkpoint in the dtypes of a model's variables.

A kind of number goes into itself and into larger ones (booleans, integers,
floating-point and complex numbers), as long as `as_dtype` allows it for each
value.
"""

import numpy as np

from keras_tpu_estimator.ground.base.dtype_changes import as_dtype
from keras_tpu_estimator.ground.base.dtype_changes import first_misfit
from keras_tpu_estimator.ground.base.dtype_changes import kind_of

# Each goes into those behind it.
_KINDS = ("bool", "whole", "real", "complex")


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
    result = converted(value, dtype, f"{name!r} in {checkpoint!r}")
    if result is not None:
        return result
    raise ValueError(
        f"The variable {path!r} is of dtype {dtype}, which cannot hold the "
        f"{value.dtype} values of {name!r} in the checkpoint {checkpoint!r}. "
        "Give it a dtype that can in model_fn, or start without this one's "
        "value: in another model_dir, or from other names."
    )


def converted(
    value: np.ndarray, dtype: np.dtype, name: str
) -> np.ndarray | None:
    """Returns a value in another dtype, or `None` if that cannot hold it.

    Args:
        value: The value. It is returned itself if it has the dtype.
        dtype: The dtype.
        name: What the value is called in warnings.

    Example:

    >>> import numpy as np
    >>> converted(np.array([1, 300]), np.dtype("uint8"), "w") is None
    True
    """
    value = np.asarray(value)
    if value.dtype == dtype:
        return value
    if not can_hold(dtype, value.dtype) or (
        first_misfit(value, dtype) is not None
    ):
        return None
    return np.asarray(as_dtype(value, dtype, name))


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
    kind, others = kind_of(dtype), kind_of(other)
    if kind is None or others is None:
        return False
    return _KINDS.index(others) <= _KINDS.index(kind)
