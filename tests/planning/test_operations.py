"""Instructions have the names of the user's layers, and copies those of their
origin.
"""

import pytest

from keras_tpu_estimator.planning import hlo, operations
from keras_tpu_estimator.planning.operations import Operation
from tests.planning import recorded

_LOOP = "jit(train_steps)/while/body/closed_call/jit(one)/shard_map"


# Copies of a loop's arguments, in the loop and after it.
_ORIGINS_LOOP = """\
%body (q: (s32[], (f32[2], f32[2]))) -> (s32[], (f32[2], f32[2])) {
  %q = (s32[], (f32[2]{0}, f32[2]{0})) parameter(0)
  %both = (f32[2]{0}, f32[2]{0}) get-tuple-element(%q), index=1
  %y = f32[2]{0} get-tuple-element(%both), index=1
  %inside = f32[2]{0} copy(%y)
  %start = (f32[2]{0}, f32[2]{0}, u32[]) copy-start(%y)
  %done = f32[2]{0} copy-done(%start)
  %named = f32[2]{0} copy(%y), metadata={op_name="jit(f)/dense/copy"}
  %sum = f32[2]{0} add(%y, %y), metadata={op_name="jit(f)/dense/add"}
  %of_sum = f32[2]{0} copy(%sum)
  %unnamed = f32[2]{0} add(%y, %y)
  %of_unnamed = f32[2]{0} copy(%unnamed)
  ROOT %next = (s32[], (f32[2], f32[2])) tuple(%q, %both)
}

%condition (p: (s32[], (f32[2], f32[2]))) -> pred[] {
  %p = (s32[], (f32[2]{0}, f32[2]{0})) parameter(0)
  ROOT %yes = pred[] constant(true)
}
"""
_ORIGINS_ENTRY = (
    "%w = f32[2]{0} parameter(0), metadata={op_name=\"values['a/kernel']\"}",
    "%v = f32[2]{0} parameter(1), metadata={op_name=\"values['step']\"}",
    "%zero = s32[] constant(0)",
    "%cast = f32[2]{0} bitcast(%w)",
    "%pair = (f32[2]{0}, f32[2]{0}) tuple(%v, %cast)",
    "%first = (s32[], (f32[2]{0}, f32[2]{0})) tuple(%zero, %pair)",
    "%loop = (s32[], (f32[2]{0}, f32[2]{0})) while(%first), "
    "condition=%condition, body=%body",
    "%last = (f32[2]{0}, f32[2]{0}) get-tuple-element(%loop), index=1",
    "%step = f32[2]{0} get-tuple-element(%last), index=0",
    "%outside = f32[2]{0} copy(%step)",
)


@pytest.mark.parametrize(
    ("op_name", "layer", "name", "is_gradient"),
    [
        (f"{_LOOP}/jvp(dense_1)/dot_general", "dense_1", "dot_general", False),
        (f"{_LOOP}/transpose(jvp(dense_1))/mul", "dense_1", "mul", True),
        (
            f"{_LOOP}/jvp(bert/layer_0)/query/add",
            "bert/layer_0/query",
            "add",
            0,
        ),
        (f"{_LOOP}/jvp(jit(log_softmax))/log", "", "log", False),
        (f"{_LOOP}/adam/sub", "adam", "sub", False),
        (f"{_LOOP}/psum", "", "psum", False),
        (f"{_LOOP}/jvp()/while/body/closed_call/tanh", "", "tanh", False),
        ("assigned['a/dense/kernel']", "a/dense", "kernel", False),
        ("w", "", "w", False),
        # All names of a TensorFlow graph are the user's.
        (f"{_LOOP}/front_end_step/MatMul", "", "MatMul", False),
        (f"{_LOOP}/front_end_step/while/body/scan", "while/body", "scan", False),
        (f"{_LOOP}/front_end_step/gradients/Tanh_grad/TanhGrad", "", "Tanh", True),
        (
            f"{_LOOP}/front_end_step/tower/gradients_1/dense/MatMul_grad/MatMul_1",
            "dense",
            "MatMul",
            True,
        ),
        (f"{_LOOP}/front_end_step/gradients/AddN", "gradients", "AddN", False),
        ("", "", "", False),
    ],
)
def test_names(op_name, layer, name, is_gradient):
    expected = Operation(layer, name, bool(is_gradient))
    assert operations.parse(op_name) == expected


def test_operations_as_text():
    assert str(Operation("dense", "add", True)) == "add of dense (gradient)"
    assert str(Operation("", "psum")) == "psum"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("inside", "copy of a/kernel"),
        ("done", "copy of a/kernel"),
        ("outside", "copy of step"),
        ("named", "copy of dense"),
        ("of_sum", "copy of dense/add"),
        ("of_unnamed", "a copy"),
        ("unnamed", "a add"),
    ],
)
def test_copies_have_the_name_of_their_origin(name, shown):
    module = hlo.parse(recorded.entry(*_ORIGINS_ENTRY, others=_ORIGINS_LOOP))
    instruction = module.computation_of[name].by_name[name]
    assert str(operations.within(module, instruction)) == shown


def test_cycle_ends():
    module = hlo.parse(
        recorded.entry("%a = f32[2]{0} copy(%b)", "%b = f32[2]{0} copy(%a)")
    )
    a, _ = module.entry.instructions
    assert operations.origin(module, a) is a
