"""Tests that values in other dtypes are equal, rounded, or refused."""

import logging

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from keras_tpu_estimator.base.common import dtype_changes
from keras_tpu_estimator.base.common.dtype_changes import as_dtype

UNIX_TIME = 1_732_543_212.0


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


@pytest.fixture(autouse=True)
def no_warnings_yet(monkeypatch):
    monkeypatch.setattr(dtype_changes, "_warned", set())


@pytest.mark.parametrize(
    "value, dtype",
    [
        (np.array([2**31 - 1, -(2**31)]), "int32"),
        (np.array([2**32 - 1], "uint64"), "uint32"),
        (np.array([3.0, -2.0]), "int8"),
        (np.array([0, 1]), "bool"),
        (np.array([True]), "float4_e2m1fn"),
        (np.array([-8, 7]), "int4"),
        (np.array([7, 1], ml_dtypes.int4), "uint8"),
        (np.array([2**24, 2**40, -(2**63)]), "float32"),
        (np.array([6.0, -6.0]), "float4_e2m1fn"),
        (np.array([448.0]), "float8_e4m3fn"),
        (np.array([1 + 2j]), "complex64"),
        (np.array([2**24]), "complex64"),
        (np.zeros((0, 3), "int64"), "int8"),
        (np.float64(3), "float32"),
        (2**40, "float32"),
    ],
)
def test_numbers_stay_equal(value, dtype):
    result = as_dtype(value, dtype_of(dtype), "x")
    assert result.dtype == dtype_of(dtype)
    assert result.shape == np.shape(value)
    exact = complex if np.iscomplexobj(value) else object
    np.testing.assert_array_equal(
        result.astype("complex128").astype(exact), np.asarray(value, exact)
    )


@pytest.mark.parametrize(
    "value, dtype, shown",
    [
        (np.array([1, 2**31]), "int32", "2147483648"),
        (np.array([-1]), "uint32", "-1"),
        (np.array([2**63], "uint64"), "int64", "9223372036854775808"),
        (np.array([8]), "int4", "8"),
        (np.array([3.5]), "int32", "3.5"),
        (np.array([np.nan]), "int32", "nan"),
        (np.array([2]), "bool", "2"),
        (np.array([2**24 + 1]), "float32", "16777217"),
        (np.array([2**63 - 1]), "float32", "9223372036854775807"),
        (np.array([2**53 + 1]), "float64", "9007199254740993"),
        (np.array([257]), "bfloat16", "257"),
        (np.array([70_000]), "float16", "70000"),
        (np.array([0.0, 1e300]), "float32", "1e+300"),
        (np.array([1.0, -70_000], "float32"), "float16", "-70000.0"),
        (np.array([100.0]), "float4_e2m1fn", "100.0"),
        (np.array([np.nan, 1]), "float4_e2m1fn", "nan"),
        (np.array([-1.0]), "float8_e8m0fnu", "-1.0"),
        (np.array([1j * 1e300]), "complex64", "1e+300"),
        (np.array([1j]), "float32", "complex numbers"),
        (np.array(["text"]), "float32", "values"),
    ],
)
def test_values_that_would_change_are_refused(value, dtype, shown):
    with pytest.raises(ValueError) as info:
        as_dtype(value, dtype_of(dtype), "`x`", "Split it.")
    assert f"`x` must fit {dtype}" in str(info.value)
    assert f"Received {shown} of dtype {value.dtype}. Split it." in str(info.value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_fractions_are_rounded_silently(dtype, caplog):
    value = np.array([np.inf, -np.inf, np.nan, 0.1, -1e-300, 300.3])
    result = as_dtype(value, dtype_of(dtype), "x").astype(float)
    np.testing.assert_array_equal(np.isfinite(result), np.isfinite(value))
    np.testing.assert_allclose(result, value, rtol=1e-2, atol=1e-10)
    assert not caplog.records


def test_rounded_integers_warn_once(caplog):
    times = np.array([[np.nan, UNIX_TIME + 1], [0, UNIX_TIME]])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            as_dtype(times, "float32", "features['time']")
        as_dtype(times * 1j, "complex64", "features['other']")
    first, second = (record.getMessage() for record in caplog.records)
    assert "features['time'] has numbers that float32 rounds by" in first
    assert str(UNIX_TIME) in first
    assert "features['other']" in second


@pytest.mark.parametrize(
    "value",
    [
        np.array([2.0**24, 2.0**30, 1e-3]),
        # float64 itself cannot represent all integers here.
        np.array([1e30, -3e38, 2.0**53]),
        np.array([UNIX_TIME], "float32"),
    ],
)
def test_exact_conversions_do_not_warn(value, caplog):
    as_dtype(value, "float32", "x")
    assert not caplog.records


def test_jax_arrays_stay_jax_arrays():
    value = jnp.array([1.0, 2.0])
    assert as_dtype(value, "float32", "x") is value
    assert isinstance(as_dtype(value, "bfloat16", "x"), jax.Array)
    with pytest.raises(ValueError, match="must fit float16"):
        as_dtype(jnp.array([1e6]), "float16", "x")


def test_value_with_the_dtype_is_returned_unchanged():
    value = np.array([np.nan, 1.0])
    assert as_dtype(value, "float64", "x") is value
