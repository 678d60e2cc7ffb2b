import collections
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_tpu_estimator.engine.inputs import packing
from keras_tpu_estimator.engine.inputs.unbatched import Unbatched

Point = collections.namedtuple("Point", "x y")


def packed_and_unpacked(nest, structure=None):
    return packing.from_bytes(packing.to_bytes(nest), structure)


def check_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int16", "int64", "float16", "float32", "complex64"],
)
def test_dtypes(dtype):
    check_equal(packed_and_unpacked(np.ones((2, 3), dtype)), np.ones((2, 3), dtype))


def test_bfloat16():
    value = np.asarray(jnp.arange(6, dtype="bfloat16").reshape(2, 3))
    check_equal(packed_and_unpacked(value), value)


def test_other_byte_orders():
    value = np.arange(5, dtype=">f4")
    check_equal(packed_and_unpacked(value), value.astype("float32"))


def test_views_empty_arrays_and_scalars():
    nest = {
        "repeated": np.broadcast_to(np.arange(3), (4, 3)),
        "turned": np.arange(6).reshape(2, 3).T,
        "none": np.zeros((1, 0, 3), "float32"),
        "scalar": np.float32(2),
    }
    check_equal(packed_and_unpacked(nest), jax.tree.map(np.asarray, nest))


def test_pytrees():
    x = np.arange(2)
    nest = ({"b": [x, (x,)], "a": None, "rate": Unbatched(x)}, None)
    check_equal(packed_and_unpacked(nest), nest)
    assert packed_and_unpacked(None) is None
    assert packed_and_unpacked({}) == {}


def test_custom_pytree_nodes_need_a_structure():
    nest = Point(np.arange(2), {1: np.arange(3)})
    with pytest.raises(ValueError, match="Received named tuples or registered"):
        packed_and_unpacked(nest)
    check_equal(packed_and_unpacked(nest, jax.tree.structure(nest)), nest)
    # A missing batch has no structure.
    assert packed_and_unpacked(None, jax.tree.structure(nest)) is None


def test_unpacking_runs_no_code():
    data = packing.to_bytes(np.arange(2))
    head = data[8 : 8 + int.from_bytes(data[:8])]
    forged = head.replace(b'"int64"', b'"object"')
    with pytest.raises(ValueError, match="OBJECT"):
        packing.from_bytes(len(forged).to_bytes(8) + forged + data[8 + len(head) :])
    with pytest.raises(ValueError):
        packing.from_bytes(pickle.dumps({"x": 1}))
