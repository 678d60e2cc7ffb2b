"""Arrays in XLA's texts take the memory that XLA says."""

import pytest

from keras_tpu_estimator.planning import hlo
from keras_tpu_estimator.planning.hlo import ArrayType


@pytest.mark.parametrize(
    ("text", "logical", "padded"),
    [
        ("f32[4096,10]{1,0:T(8,128)}", 163_840, 2_097_152),
        # The first dimension is the minor one: ten rows become sixteen.
        ("f32[4096,10]{0,1:T(8,128)}", 163_840, 262_144),
        ("f32[10]{0:T(128)}", 40, 512),
        ("f32[]{:T(128)}", 4, 512),
        ("bf16[1024,4096]{1,0:T(8,128)(2,1)}", 2**23, 2**23),
        ("bf16[3,5]{1,0:T(8,128)(2,1)}", 30, 2048),
        ("s32[10,1024]{1,0:T(8,128)}", 40_960, 65_536),
        ("f32[10,1024,784]{1,2,0:T(8,128)}", 32_112_640, 32_112_640),
        # More dimensions than those of a tile, and fewer.
        ("f32[2,3,5]{2,1,0:T(8,128)}", 120, 8192),
        ("f32[5]{0:T(8,128)}", 20, 512),
        ("pred[100]{0}", 100, 100),
        ("s4[3]{0}", 2, 2),
        ("f8e4m3fn[16]", 16, 16),
        ("f32[0,8]{1,0:T(8,128)}", 0, 0),
        ("c64[4]", 32, 32),
    ],
)
def test_bytes(text, logical, padded):
    (array,) = hlo.parse_types(text)
    assert (array.bytes, array.padded_bytes) == (logical, padded)


def test_tuples_are_all_their_arrays():
    text = "((f32[2,3]{1,0:T(8,128)S(1)}), /*index=1*/token[], u32[]{:S(2)})"
    assert hlo.parse_types(text) == (
        ArrayType("f32", (2, 3), (1, 0), (8, 128), space=1),
        ArrayType("u32", (), space=2),
    )


def test_what_has_no_known_dtype_is_left_out():
    assert not hlo.parse_types("token[]")
    assert not hlo.parse_types("opaque[]")
    assert not hlo.parse_types("")


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("pred", "bool"),
        ("bf16", "bfloat16"),
        ("f32", "float32"),
        ("s8", "int8"),
        ("u64", "uint64"),
        ("c64", "complex64"),
        ("f8e4m3fn", "float8e4m3fn"),
    ],
)
def test_names_of_dtypes(dtype, name):
    assert hlo.dtype_name(dtype) == name
