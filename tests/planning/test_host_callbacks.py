"""Calls of Python, as XLA writes them for each kind of device."""

import pytest

from keras_tpu_estimator.planning import costs, hlo, loops
from tests.planning import recorded

NAMED = ', metadata={op_name="jit(f)/while/body/dense/pure_callback"}'
LINES = {
    "a TPU's": [
        "%s = (f32[2], u32[], token[]) send(%x, %t), is_host_transfer=true",
        "%r = (f32[2], u32[], token[]) recv(%t), is_host_transfer=true",
    ],
    "a GPU's": [
        "%c = (f32[2]) custom-call(%x), "
        'custom_call_target="xla_ffi_python_gpu_callback"',
    ],
    "between cores": ["%s = (f32[2], u32[], token[]) send(%x, %t)"],
    "another call": ['%c = f32[2] custom-call(%x), custom_call_target="topk"'],
}


@pytest.mark.parametrize("kind", LINES)
def test_calls_are_told_once(kind):
    text = recorded.entry(*(line + NAMED for line in LINES[kind]))
    runs = loops.split(hlo.parse(text), steps=1).step
    is_of_python = kind in ("a TPU's", "a GPU's")
    expected = ("pure_callback of dense",) if is_of_python else ()
    assert costs.callbacks(runs) == expected
