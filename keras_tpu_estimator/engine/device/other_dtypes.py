"""Values that have other dtypes than the variables that are to have them."""

import logging
from collections.abc import Mapping

import jax
import numpy as np

from keras_tpu_estimator.engine.program.store import GLOBAL_STEP, VariableStore
from keras_tpu_estimator.files.warm_start.pairing import Described, can_hold
from keras_tpu_estimator.ground.base.dtype_changes import as_dtype

_logger = logging.getLogger("keras_tpu_estimator")


def tell(
    store: VariableStore,
    names: Mapping[str, str],
    there: Mapping[str, Described],
) -> None:
    """Says that a checkpoint has other dtypes than its model.

    Nothing is said of 64-bit numbers where devices have none.

    Args:
        there: What describes the checkpoint's variables, by name.
    """
    other = [
        path
        for path, name in names.items()
        if path != GLOBAL_STEP and _on_devices(there[name]) != store.device_dtype(path)
    ]
    if other:
        _logger.warning(
            "%d of %d variables are restored in another dtype than the "
            "checkpoint has, such as %r in %s instead of %s.",
            len(other),
            len(names),
            other[0],
            store.device_dtype(other[0]),
            np.dtype(there[names[other[0]]].dtype),
        )


def converted(
    store: VariableStore, path: str, name: str, value: jax.Array | np.ndarray
) -> jax.Array | np.ndarray:
    """The value of one variable in the dtype of another.

    Args:
        value: The value.

    Raises:
        ValueError: The dtype does not hold it, or may not hold others.
    """
    dtype, own = store.device_dtype(path), np.dtype(value.dtype)
    is_integer = np.issubdtype(dtype, np.integer)
    if can_hold(dtype, own) and (not is_integer or np.can_cast(own, dtype)):
        return as_dtype(value, dtype, f"The value of {name!r}")
    raise ValueError(
        f"`variables_to_restore` should give {path!r} values that {dtype} can "
        f"hold. Received {name!r} of dtype {own}. Map it to a variable of its "
        "own dtype."
    )


def _on_devices(stored: Described) -> np.dtype:
    dtype = np.dtype(stored.dtype)
    is_wide = dtype.kind in "iuf" and dtype.itemsize == 8
    return jax.dtypes.canonicalize_dtype(dtype) if is_wide else dtype
