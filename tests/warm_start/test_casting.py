"""Tests casts of checkpoint values to the dtypes of variables."""

import ml_dtypes
import numpy as np
import pytest

from keras_tpu_estimator.files.warm_start.pairing import cast

KINDS = (
    ("bool",),
    ("int8", "uint8", "int32", "uint32", "int64"),
    ("float8_e4m3fn", "float16", "bfloat16", "float32", "float64"),
    ("complex64",),
)
DTYPES = [name for names in KINDS for name in names]


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def kind_of(name):
    return next(i for i, names in enumerate(KINDS) if name in names)


def casted(value, dtype):
    return cast(value, dtype_of(dtype), "dense/kernel", "w", "run/model.ckpt-3")


@pytest.mark.parametrize("stored", DTYPES)
def test_numbers_are_cast_to_equal_or_larger_kinds(stored):
    value = np.array([[0, 1]]).astype(dtype_of(stored))
    smaller = [to for to in DTYPES if kind_of(to) < kind_of(stored)]
    for to in smaller:
        with pytest.raises(ValueError, match=f"Received: {to}"):
            casted(value, to)
    for to in sorted({*DTYPES} - {*smaller}):
        got = casted(value, to)
        assert got.dtype == dtype_of(to)
        np.testing.assert_array_equal(got.astype(complex), [[0, 1]], err_msg=to)
    assert casted(value, stored) is value


@pytest.mark.parametrize(
    "value, to",
    [
        (np.array([300]), "uint8"),
        (np.array([-1]), "uint32"),
        (np.array([2**31]), "int32"),
        (np.array([1e6], "float32"), "float16"),
        (np.array([1e300]), "float32"),
        (np.array([70_000]), "float16"),
        (np.array([3e38]), "float8_e4m3fn"),
        (np.array(["text"], object), "float32"),
        (np.array(["text"]), "int32"),
    ],
)
def test_refused_casts_are_named(value, to):
    with pytest.raises(ValueError) as info:
        casted(value, to)
    message = str(info.value)
    for part in ("'dense/kernel'", "'w'", "'run/model.ckpt-3'"):
        assert part in message
    assert f"Received: {to}." in message and f"{value.dtype} " in message


@pytest.mark.parametrize("to", ["float16", "bfloat16", "float32"])
def test_nan_stays_nan(to):
    value = np.array([np.inf, -np.inf, np.nan, 0.1])
    got = casted(value, to).astype(float)
    np.testing.assert_array_equal(np.isfinite(got), [False] * 3 + [True])
    np.testing.assert_allclose(got, value, rtol=1e-2)


def test_empty_values_are_cast_to_any_dtype():
    assert casted(np.zeros((0, 3)), "bfloat16").shape == (0, 3)
    assert casted(np.float64(0.5), "float32").shape == ()
