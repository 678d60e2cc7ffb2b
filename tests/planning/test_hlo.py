"""Programs are read from XLA's texts; what is not understood is left out."""

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


def test_names_need_no_sign_and_operands_may_have_types():
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


def test_what_is_no_program_has_no_entry():
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
