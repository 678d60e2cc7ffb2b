"""The errors of compilers say what to change."""

import re

import jax
import jax.extend as jex
import jax.numpy as jnp
import pytest
from helpers import slow
from jax.interpreters import mlir
from jaxlib.mlir import ir

from keras_tpu_estimator.errors import CompileError, DoesNotFitError
from keras_tpu_estimator.planning import compiling, topologies
from keras_tpu_estimator.planning.chips import CHIPS
from tests.planning import lowering
from tests.planning.lowering import V5E


def test_a_program_that_fits():
    lowered, arguments = lowering.training(V5E, rows=8)
    compiled = compiling.compiled(lowered, V5E, arguments, batch_size=32)
    assert "all-reduce" in compiled.as_text()


def _too_large(rows, **settings):
    lowered, arguments = lowering.training(V5E, rows, **settings)
    with pytest.raises(DoesNotFitError) as raised:
        compiling.compiled(lowered, V5E, arguments, rows * V5E.num_cores)
    return raised.value


def test_an_error_has_the_largest_arrays_and_a_batch_size():
    rows = 6_000_000
    error = _too_large(rows)
    assert 1 < error.used / error.limit < 3
    assert error.used % 512 == 0
    assert error.limit == V5E.chip.memory_left
    assert error.arguments["input"].real == 3 * rows * 256 * 4
    assert error.arguments["variables"].real == 2 * 256 * 256 * 4
    # By name of the layer, on a core.
    assert any("dense_" in each.operation.layer for each in error.largest)
    assert rows in error.largest[0].shape
    text = str(error)
    assert "core of v5e:2x2 has 15.75 GiB for programs" in text
    assert f"A batch size of {error.batch_size} may fit" in text
    assert "of dense_" in text
    # The suggested size fits, and a slightly larger one does not.
    assert error.batch_size % V5E.num_cores == 0
    share = error.batch_size / (rows * V5E.num_cores)
    assert 0.9 < share * error.used / error.limit < 1


def test_without_layers_the_line_is_named_and_equal_arrays_are_counted():
    def network(x):
        for _ in range(3):
            x = jnp.sort(x, 0)  # This line.
        return x

    lowered = jax.jit(network).lower(lowering.array(V5E, (2**20, 2**12)))
    with pytest.raises(DoesNotFitError) as raised:
        compiling.compiled(lowered, V5E)
    named = [each for each in raised.value.largest if each.operation.line]
    line = network.__code__.co_firstlineno + 2
    assert {each.operation.line for each in named} == {(__file__, line)}
    assert f"test_planning_compiling.py:{line}, float32[" in str(raised.value)
    rows = [str(each) for each in raised.value.largest]
    assert len(rows) == len({row.partition(" x ")[2] or row for row in rows})


def test_a_model_that_no_batch_size_fits():
    error = _too_large(rows=8, width=30_000, depth=2)
    assert error.batch_size == 0
    assert "the program is too large" in str(error)
    assert "num_cores_per_replica" in str(error)


def test_a_far_too_large_program():
    rows = 200_000_000
    error = _too_large(rows)
    assert error.used > 30 * error.limit
    assert rows in error.largest[0].shape
    assert 0 < error.batch_size < rows * V5E.num_cores / 30


def test_the_layout_has_the_size_and_the_largest_arrays():
    x = lowering.array(V5E, (2**20, 2**18))
    lowered = jax.jit(lambda x: jnp.sort(x) + x[::-1]).lower(x)
    layout = compiling.laid_out(lowered, count=1)
    assert layout.used > 2**40
    assert layout.module.entry
    (largest,) = layout.largest
    assert largest.shape == (2**20, 2**18)


def test_without_arguments_no_batch_size_is_suggested():
    lowered, _ = lowering.training(V5E, rows=6_000_000)
    with pytest.raises(DoesNotFitError, match="Choose a smaller batch") as e:
        compiling.compiled(lowered, V5E)
    assert e.value.batch_size is None
    assert e.value.__cause__ is not None


def test_both_messages_about_memory_are_parsed():
    early = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory "
        "required for HLO temporaries (1.50T) exceeds available HBM (15.75G)."
    )
    late = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of "
        "memory in memory space hbm. Used 23.75G of 15.75G hbm. Exceeded hbm "
        "capacity by 8.00G."
    )
    assert compiling._needed(early) == (3 * 2**39, 63 * 2**28)
    assert compiling._needed(late) == (95 * 2**28, 63 * 2**28)
    small = "RESOURCE_EXHAUSTED: Allocation would exceed memory (size=134217728)"
    assert compiling._needed(small) is None
    assert compiling._needed("INVALID_ARGUMENT: " + late[20:]) is None


def test_a_missing_library_is_named_with_the_line():
    unknown = jax.ffi.ffi_call("nonsense", jax.ShapeDtypeStruct((8,), "float32"))
    lowered = jax.jit(lambda x: unknown(x) + 1).lower(lowering.array(V5E, (8,)))
    with pytest.raises(CompileError) as raised:
        compiling.compiled(lowered, V5E)
    error = raised.value
    assert error.operation == "nonsense"
    assert error.file == __file__
    assert re.search(r"The line is: lowered = jax.jit\(lambda", str(error))


def _eigenvalues(x):
    return jnp.linalg.eig(x)[0]  # The line.


def _eigenvalues_inside(x):
    return jax.lax.cond(x[0, 0] > 0, jnp.linalg.eigvals, lambda x: x[0] + 0j, x)


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (_eigenvalues, "return jnp.linalg.eig(x)[0]  # The line."),
        # Inside a function that JAX compiles itself.
        (lambda x: jnp.linalg.eigvals(x), "(lambda x: jnp.linalg.eigvals(x),"),
        (_eigenvalues_inside, "return jax.lax.cond(x[0, 0] > 0"),
    ],
)
def test_an_operation_that_jax_rejects_is_named_with_the_line(function, line):
    x = lowering.array(V5E, (8, 8))
    with pytest.raises(CompileError) as raised:
        compiling.lowered(jax.jit(lambda x: function(x) + 1).trace(x))
    error = raised.value
    assert error.operation == "eig"
    assert error.file == __file__
    assert line in str(error)


_ODD = jex.core.Primitive("odd_copy")
_ODD.def_abstract_eval(lambda x: x)


def _odd_copy(context, x):
    del context
    made = ir.Operation.create("mhlo.copy", operands=[x], results=[x.type])
    return [made.result]


mlir.register_lowering(_ODD, _odd_copy)


def test_an_operation_that_is_illegal_is_named_with_the_line():
    lowered = jax.jit(lambda x: _ODD.bind(jnp.tanh(x))).lower(
        lowering.array(V5E, (8, 8))
    )
    with pytest.raises(CompileError, match="rejects the operation 'mhlo.copy'"):
        compiling.compiled(lowered, V5E)


def test_lines_of_libraries_are_skipped():
    said = (
        f"error at {jax.__file__}:3:2\n"
        f"called from {compiling.__file__}:9:1\n"
        "called from /home/user/model.py:12:5\n"
    )
    error = compiling._refused(said)
    assert (error.file, error.line) == ("/home/user/model.py", 12)
    assert error.operation is None
    assert "rejects the program at /home/user/model.py:12." in str(error)
    assert compiling._refused("It is wrong.").file == ""


@pytest.mark.parametrize("kind", ["v4", slow("v6e")])
def test_other_kinds_have_the_same_error(kind):
    topology = topologies.TpuTopology(CHIPS[kind], topologies.shapes(kind)[1])
    rows = topology.chip.memory_left // 4000
    lowered, _ = lowering.training(topology, rows=rows)
    with pytest.raises(DoesNotFitError) as raised:
        compiling.compiled(lowered, topology)
    assert raised.value.limit == pytest.approx(topology.chip.core.memory_left, rel=1e-3)
