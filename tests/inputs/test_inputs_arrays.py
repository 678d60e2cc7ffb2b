"""Tests arrays that devices do not support unchanged, and other mappings."""

import collections
import functools
import types

import ml_dtypes
import numpy as np
import pytest

from keras_tpu_estimator.base.common.params import with_additional
from keras_tpu_estimator.engine.inputs.deployment import undivided
from keras_tpu_estimator.engine.inputs.pipeline import Pipeline
from keras_tpu_estimator.engine.inputs.request import InputRequest

X = np.arange(4)


def batch_of(features, is_stream):
    """Returns the only batch of an input that returns or yields these features."""
    request = InputRequest(
        "eval",
        undivided(4),
        functools.partial(with_additional, {}),
        repeat=False,
    )
    returned = iter([features]) if is_stream else features
    with Pipeline(lambda params: returned, request) as pipeline:
        return pipeline.take(1).features


either = pytest.mark.parametrize("is_stream", [False, True])


@either
@pytest.mark.parametrize("dtype", [">f4", ">i4", ">u2", "<i8", ">f8"])
def test_bytes_may_be_in_any_order(dtype, is_stream):
    got = batch_of(X.astype(dtype), is_stream)
    assert got.dtype == np.dtype(dtype).newbyteorder("=") and got.dtype.isnative
    np.testing.assert_array_equal(got, X[None])


@either
@pytest.mark.parametrize(
    "dtype",
    [
        [("a", "f4"), ("b", "i4")],
        "V4",
        np.longdouble,
        np.clongdouble,
        object,
        "datetime64[s]",
    ],
)
def test_error_names_dtypes_that_devices_lack(dtype, is_stream):
    with pytest.raises(ValueError, match=r"features\['x'\] must contain numbers"):
        batch_of({"x": X.astype(dtype)}, is_stream)


@either
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_dtypes_of_other_packages_are_numbers(name, is_stream):
    values = X.astype(getattr(ml_dtypes, name))
    assert batch_of(values, is_stream).dtype == values.dtype


@either
@pytest.mark.parametrize("kind", [collections.UserDict, types.MappingProxyType])
def test_other_mappings_are_dicts(kind, is_stream):
    got = batch_of(kind({"b": X, "a": kind({"c": X})}), is_stream)
    assert type(got) is dict and type(got["a"]) is dict
    np.testing.assert_array_equal(got["b"], X[None])
    np.testing.assert_array_equal(got["a"]["c"], X[None])


@either
def test_keys_of_several_kinds_are_an_error(is_stream):
    with pytest.raises(ValueError, match="keys .* one type.* int, str"):
        batch_of({"outer": {"a": X, 1: X}}, is_stream)


@either
@pytest.mark.parametrize(
    "lists", [[1.0, 2.0], [[1, 2], [3]], collections.UserDict(ids=[[True]])]
)
def test_lists_of_numbers_are_refused(lists, is_stream):
    with pytest.raises(ValueError, match="Received a list of numbers.*asarray"):
        batch_of({"x": X, "tokens": lists}, is_stream)


@either
@pytest.mark.parametrize("labels", [[0, 1], [[0], [1]], [np.int64(0), np.float32(1)]])
def test_error_names_lists_of_numbers(labels, is_stream):
    with pytest.raises(ValueError, match="as `labels`, which would be 2"):
        batch_of((X, labels), is_stream)
    with pytest.raises(ValueError, match=r"as `features\['a'\]\['b'\]`"):
        batch_of({"a": {"b": labels}}, is_stream)


@either
def test_lists_of_arrays_and_tuples_of_numbers_are_pytrees(is_stream):
    got = batch_of({"x": [X, X], "rates": (0.5, 2)}, is_stream)
    assert [each.shape for each in got["x"]] == [(1, 4)] * 2
    assert [float(each.value[0]) for each in got["rates"]] == [0.5, 2.0]


@either
def test_masked_values_are_an_error(is_stream):
    masked = np.ma.masked_array(X, X > 2)
    with pytest.raises(ValueError, match="1 of 4 values masked.*filled"):
        batch_of({"x": masked}, is_stream)
    whole = np.ma.masked_array(X, np.zeros(4, bool))
    np.testing.assert_array_equal(batch_of(whole, is_stream), X[None])
