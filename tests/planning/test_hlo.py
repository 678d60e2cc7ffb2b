"""The parser reads XLA's programs and array types, and skips unknown text."""

import pytest

from keras_tpu_estimator.planning import hlo
from keras_tpu_estimator.planning.hlo import ArrayType
from tests.planning import lowering, recorded


def test_a_program_is_read():
    module = hlo.parse(recorded.LOOPS)
    assert module.entry.name == "main"
    assert set(module.computations) == {
        "add.1",
        "inner_body",
        "inner_condition",
        "body",
        "condition",
        "main",
    }
    assert [each.padded_bytes for each in module.parameters] == [4096, 512, 512]
    assert module.aliased == {0, 2}


def test_an_instruction_is_read():
    body = hlo.parse(recorded.LOOPS).computations["inner_body"]
    tanh = body.by_name["tanh.1"]
    assert tanh.type == (ArrayType("f32", (8, 128), (1, 0), (8, 128)),)
    assert (tanh.opcode, tanh.operands) == ("tanh", ("x",))
    assert tanh.op_name == "jit(f)/while/body/jvp(lstm)/tanh"
    assert tanh.cycles == 70
    assert body.by_name["one.1"].literal == "1"
    assert body.by_name["i"].attribute("index") == "0"
    assert body.by_name["i"].cycles is None
    assert body.root.name == "t"


def test_names_without_percent_and_operands_with_types():
    module = hlo.parse(
        recorded.entry(
            "x = f32[2]{0} parameter(0)",
            "ROOT y = f32[2]{0} add(f32[2]{0} x, f32[2]{0} x)",
            "z = f32[2]{0} add(x, y)",
        ).replace("%", "")
    )
    assert module.entry.by_name["z"].operands == ("x", "y")
    typed = hlo.parse(
        recorded.entry("%y = f32[2]{0} add(f32[2]{0} %x, (f32[2], s32[]) %t)")
    )
    assert typed.entry.by_name["y"].operands == ("x", "t")


def test_elements_may_have_the_name_of_their_tuple():
    module = hlo.parse(
        recorded.entry(
            "%x = f32[2]{0} parameter(0)",
            "%t = (f32[2]{0}, s32[3]{0}) sort(%x, %n)",
            "%y = s32[3]{0} add(%t#1, %t#1)",
        )
    )
    assert [each.name for each in module.entry.instructions] == [
        *("x", "t", "t#1", "y"),
    ]
    element = module.entry.by_name["t#1"]
    assert element.opcode == "get-tuple-element"
    assert element.operands == ("t",)
    assert element.attribute("index") == "1"
    assert element.type == (ArrayType("s32", (3,), (0,), ()),)


def test_branches_are_called():
    (choice,) = hlo.parse(
        recorded.entry(
            "%c = f32[] conditional(%i, %a), branch_computations={%no, %yes}"
        )
    ).entry.instructions
    assert set(choice.called.values()) == {"no", "yes"}


def test_other_text_has_no_entry():
    for text in ("", "nothing of the kind", "HloModule m\n"):
        module = hlo.parse(text)
        assert module.entry is None
        assert module.parameters is None
        assert module.aliased == frozenset()
    assert not hlo.parse(recorded.entry("%x = what", "%y =")).entry.instructions


def test_a_compiled_program_is_read_to_the_last_instruction():
    lowered, _ = lowering.training(lowering.V5E, rows=8)
    compiled = lowered.compile()
    module = hlo.parse(compiled.as_text())
    lines = compiled.as_text().splitlines()
    written = sum(line.startswith("  ") and " = " in line for line in lines)
    read = (len(each.instructions) for each in module.computations.values())
    assert sum(read) == written > 50
    stats = compiled.memory_analysis()
    taken = sum(each.padded_bytes for each in module.parameters)
    assert taken == stats.argument_size_in_bytes


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


def test_types_without_a_dtype_are_skipped():
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


def test_attributes_on_several_lines_are_read():
    """The metadata of a Pallas kernel."""
    text = recorded.entry(
        '%k = f32[8]{0} custom-call(%a), custom_call_target="tpu_custom_call", '
        'frontend_attributes={kernel_metadata={\n"x":"1"\n}}, '
        'metadata={op_name="jit(f)/kernel"}'
    )
    assert hlo.parse(text).entry.by_name["k"].op_name == "jit(f)/kernel"
