"""Conversions between dtypes, by the same rules everywhere.

Devices use 32 bits for most numbers, and users' programs use 64. A conversion
must keep the value:

* Integers, booleans, and integral floats that become integers stay equal.
* Fractions are rounded. If rounding changes integers, such as Unix times
  in seconds that become float32, one warning for each name reports it.
* Infinities and NaN stay the same, and no other number becomes one.

Any other change is an error.
"""

import logging
from collections.abc import Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

# float32 and float64 contain all integers up to these.
_GAPS_OF_FLOAT32 = 2.0**24
_GAPS_OF_FLOAT64 = 2.0**53
# Rounding by at least this changes integers.
_OF_INTEGERS = 0.5
_ADVICE = "Give it values that fit, or a dtype that holds them."
# `np.dtype.isbuiltin` of the dtypes of other packages, such as bfloat16.
_REGISTERED = 2

_logger = logging.getLogger("keras_tpu_estimator")
_warned: set[str] = set()


def as_dtype(
    value: Any, dtype: Any, name: str, advice: str = _ADVICE
) -> np.ndarray | jax.Array:
    """Returns a value in another dtype, or raises if it does not fit.

    A value of this dtype is returned itself, and a JAX array stays a JAX array.
    Errors contain the value's name, and advice in a sentence.
    """
    value = value if isinstance(value, jax.Array) else np.asarray(value)
    check_fits(value, dtype, name, advice)
    return value if value.dtype == dtype else value.astype(dtype)


def check_fits(
    value: np.ndarray | jax.Array, dtype: Any, name: str, advice: str = _ADVICE
) -> None:
    """Checks that a value fits a dtype; warns if integers are rounded.

    JAX arrays with shards in other processes are not checked.
    """
    dtype = np.dtype(dtype)
    if value.dtype == dtype or not getattr(value, "is_fully_addressable", True):
        return
    array = np.asarray(value)
    wrong = first_misfit(array, dtype)
    if wrong is not None:
        raise ValueError(
            f"{name} must fit {dtype}{_limits_in_words(dtype)}. Received "
            f"{wrong} of dtype {value.dtype}. {advice}"
        )
    _warn_of_rounding(array, dtype, name)


def first_misfit(value: np.ndarray, dtype: Any) -> object | None:
    """Returns a number that does not fit another dtype, or a noun such as "values"."""
    dtype, stored = np.dtype(dtype), np.dtype(value.dtype)
    if stored == dtype:
        return None
    if kind_of(stored) is None or kind_of(dtype) is None:
        return "values"
    if kind_of(stored) == "bool":
        return None
    if kind_of(stored) == "complex":
        if kind_of(dtype) != "complex":
            return "complex numbers"
        real, imaginary = np.real(value), np.imag(value)
        dtype = np.real(np.zeros((), dtype)).dtype
        wrong = first_misfit(real, dtype)
        return first_misfit(imaginary, dtype) if wrong is None else wrong
    if stored.isbuiltin == _REGISTERED:
        value = value.astype("int32" if kind_of(stored) == "integral" else "float32")
    if not value.size or _surely_fits(value, dtype):
        return None
    misfits = value[_misfits(value, dtype)]
    return misfits.flat[0].item() if misfits.size else None


def kind_of(dtype: Any) -> str | None:
    """Returns "bool", "integral", "real" or "complex"; `None` for other dtypes."""
    dtype = np.dtype(dtype)
    # NumPy does not know the kind of other packages' dtypes.
    if dtype.isbuiltin != _REGISTERED:
        kinds = {"b": "bool", "i": "integral", "u": "integral", "f": "real"}
        return {**kinds, "c": "complex"}.get(dtype.kind)
    try:
        ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        return "real"
    return "integral"


def _surely_fits(value: np.ndarray, dtype: np.dtype) -> bool:
    """Returns whether the extremes of an array prove that all its values fit."""
    least, most = _limits(dtype)
    if kind_of(dtype) == "real":
        gaps = _gaps_of(dtype)
        least, most = max(least, -gaps), min(most, gaps)
    elif kind_of(value.dtype) == "real":
        return False
    # With NaN, the extremes are NaN, and the comparison is false. It is made
    # in Python, because float16 does not contain such limits.
    return bool(least <= value.min().item() and value.max().item() <= most)


def _misfits(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Finds real numbers that change by more than rounding of fractions."""
    least, most = _limits(dtype)
    is_real = kind_of(value.dtype) == "real"
    if is_real:
        value = value.astype("float64")
    if kind_of(dtype) != "real":
        is_outside = ~((value >= least) & (value <= most))
        return is_outside | (value != np.floor(value)) if is_real else is_outside
    with np.errstate(over="ignore", invalid="ignore"):
        result = value.astype(dtype).astype("float64")
        is_infinite = np.isfinite(result) != np.isfinite(value)
        if not np.isposinf(np.array(np.inf, "float32").astype(dtype)):
            # This dtype has no infinity.
            is_infinite |= np.isfinite(value) & (abs(value) > most)
    if is_real:
        return is_infinite
    # Python compares integers with floats exactly.
    differs = [
        not np.isfinite(converted) or int(converted) != int(original)
        for converted, original in zip(result.flat, value.flat, strict=True)
    ]
    return np.reshape(differs, value.shape)


def _limits(dtype: np.dtype) -> tuple[float, float]:
    """Returns the smallest and the largest number of a dtype."""
    if kind_of(dtype) == "bool":
        return 0, 1
    if kind_of(dtype) == "integral":
        integers: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
        return int(integers.min), int(integers.max)
    floats: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return float(floats.min), float(floats.max)


def _gaps_of(dtype: np.dtype) -> int:
    """Returns the number up to which a float dtype has all integers.

    The result is an integer, because NumPy would compare floats inexactly.
    """
    floats: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return 2 ** (int(floats.nmant) + 1)


def _limits_in_words(dtype: np.dtype) -> str:
    if kind_of(dtype) != "integral":
        return ""
    least, most = _limits(dtype)
    return f", numbers from {least} to {most}"


def _warn_of_rounding(value: np.ndarray, dtype: np.dtype, name: str) -> None:
    """Warns once if the change from float64 to float32 rounds integers."""
    is_halved = (value.dtype.name, dtype.name) in (
        ("float64", "float32"),
        ("complex128", "complex64"),
    )
    if not is_halved or name in _warned:
        return
    for part in (np.real(value), np.imag(value)):
        if not part.size or _surely_fits(part, np.dtype("float32")):
            continue
        size = abs(part)
        large = part[(size > _GAPS_OF_FLOAT32) & (size < _GAPS_OF_FLOAT64)]
        changes = abs(large - large.astype("float32"))
        if changes.size and changes.max() >= _OF_INTEGERS:
            _warned.add(name)
            example = large[changes.argmax()]
            _logger.warning(
                "%s has numbers that %s rounds by %s, such as %r. Subtract an "
                "offset from them, or split them into two, if that matters.",
                name,
                dtype,
                changes.max(),
                float(example),
            )
            return


def abstract_array(
    shape: Sequence[Any], dtype: Any, sharding: jax.sharding.Sharding | None = None
) -> jax.ShapeDtypeStruct:
    """Returns a shape and a dtype, converted to the width of the devices, 32 bits."""
    narrow = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(tuple(shape), narrow, sharding=sharding)
