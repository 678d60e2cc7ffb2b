"""Instructions have the innermost line of the user's code."""

import pathlib

import jax
import pytest

from keras_tpu_estimator.base.common import user_code
from keras_tpu_estimator.base.common.user_code import SourceLine
from keras_tpu_estimator.planning import hlo, operations
from keras_tpu_estimator.planning.source_lines import SourceLines

PACKAGE = pathlib.Path(user_code.__file__).parents[2]
FILES = [
    *("/home/user/train.py", "/home/user/model.py"),
    *(jax.__file__, "/opt/site-packages/flax/nnx/linear.py"),
    *(f"{PACKAGE}/engine/device/device_loop.py", f"{PACKAGE}/spec/x.py"),
]
TRAIN, MODEL, JAX, FLAX, ENGINE, SPEC = range(1, 7)


def text_of(stack, offset=1):
    """A program whose frames are these files, from the outermost inward."""
    files = [f'{n} "{file}"' for n, file in enumerate(FILES, 1)]
    places = [
        f"{n} {{file_name_id={file} function_name_id=1 line={10 * n} "
        f"end_line={10 * n} column=1 end_column=2}}"
        for n, file in enumerate(stack, 1)
    ]
    frames = [
        f"{n} {{file_location_id={n} parent_frame_id={n - 1 + offset}}}"
        for n in range(1, len(stack) + 1)
    ]
    tables = {
        "FileNames": files,
        "FunctionNames": ['1 "f"'],
        "FileLocations": places,
        "StackFrames": frames,
    }
    return "HloModule m\n\n" + "".join(
        "\n".join([title, *rows, "", ""]) for title, rows in tables.items()
    )


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    ("stack", "line"),
    [
        ([TRAIN], ("train.py", 10)),
        ([TRAIN, MODEL, FLAX, JAX], ("model.py", 20)),
        ([MODEL, SPEC, JAX], ("model.py", 10)),
        # This package has made the operation, so the script's call of `train` is not
        # its origin.
        ([TRAIN, ENGINE], None),
        ([TRAIN, ENGINE, JAX], None),
        ([TRAIN, ENGINE, MODEL, SPEC, FLAX], ("model.py", 30)),
        ([JAX], None),
    ],
)
def test_the_innermost_line_of_the_user(stack, line, offset):
    lines = SourceLines.parse(text_of(stack, offset))
    attributes = f'metadata={{op_name="a" stack_frame_id={len(stack)}}}'
    expected = line and SourceLine(f"/home/user/{line[0]}", line[1])
    assert lines.user_line(attributes) == expected


def test_programs_without_tables():
    lines = SourceLines.parse("HloModule m\n\nENTRY %main () -> f32[] {\n}\n")
    assert lines.user_line('metadata={op_name="a"}') is None
    assert lines.user_line("metadata={stack_frame_id=3}") is None
    old = 'metadata={op_name="a" source_file="/home/user/m.py" source_line=7}'
    assert lines.user_line(old) == SourceLine("/home/user/m.py", 7)


def test_cycle_of_frames_ends():
    text = text_of([JAX, JAX]).replace("parent_frame_id=2", "parent_frame_id=9")
    lines = SourceLines.parse(text)
    assert lines.user_line("metadata={stack_frame_id=2}") is None


def test_paths_are_relative_to_this_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert str(SourceLine(str(tmp_path / "a" / "b.py"), 3)) == "a/b.py:3"
    assert str(SourceLine("/home/user/b.py", 3)) == "/home/user/b.py:3"
    assert str(SourceLine("<ipython-input-1>", 3)) == "<ipython-input-1>:3"


def test_operations_have_the_line():
    text = text_of([TRAIN, MODEL]) + (
        "ENTRY %main (x: f32[2]) -> f32[2] {\n"
        "  %x = f32[2]{0} parameter(0)\n"
        '  %y = f32[2]{0} tanh(%x), metadata={op_name="jit(f)/jvp()/tanh" '
        "stack_frame_id=2}\n"
        '  ROOT %z = f32[2]{0} tanh(%y), metadata={op_name="jit(f)/'
        'transpose(jvp(dense))/tanh" stack_frame_id=2}\n'
        "}\n"
    )
    x, y, z = hlo.parse(text).entry.instructions
    assert [str(operations.from_instruction(each)) for each in (x, y, z)] == [
        "a parameter",
        "tanh at /home/user/model.py:20",
        "tanh of dense at /home/user/model.py:20 (gradient)",
    ]


def test_lines_of_programs_that_jax_compiles_here():
    def network(x):
        return jax.nn.softmax(x @ x.T)  # This line.

    text = jax.jit(network).lower(jax.numpy.ones((8, 8))).compile().as_text()
    number = network.__code__.co_firstlineno + 1
    found = {
        operations.from_instruction(each).line
        for computation in hlo.parse(text).computations.values()
        for each in computation.instructions
    }
    assert found - {None} == {SourceLine(__file__, number)}
