"""The costs of compiled loops match their work."""

import jax
import jax.numpy as jnp
import pytest
from helpers import slow

from keras_tpu_estimator.errors import DoesNotFitError
from keras_tpu_estimator.planning import (
    compiling,
    costs,
    hlo,
    loops,
    memory,
    topologies,
)
from keras_tpu_estimator.planning.costs import Roofline
from keras_tpu_estimator.planning.memory import Memory
from tests.planning import lowering, recorded
from tests.planning.lowering import V5E

_NAMED = ', metadata={op_name="jit(f)/while/body/dense/pure_callback"}'
CALLBACK_LINES = {
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


def _cost(topology=V5E, rows=64, steps=3, **settings):
    lowered, arguments = lowering.training(topology, rows, steps=steps, **settings)
    compiled = compiling.compiled(lowered, topology)
    return costs.step_cost(compiled, topology, steps, arguments), compiled


@pytest.mark.parametrize(
    "name", ["v5e:2x2", slow("v4:2x2x1"), slow("v6e:2x2"), "v5e:4x4"]
)
def test_a_step_of_training(name):
    topology = topologies.parse(name)
    found, _ = _cost(topology)
    # Two products for each layer, except the gradient of the first input.
    assert found.flops == pytest.approx(2 * 64 * 256**2 * 5, rel=0.03)
    (reduced,) = found.collectives
    assert (reduced.kind, reduced.count) == ("all-reduce", 1)
    assert reduced.bytes == {"float32": 2 * 256 * 256 * 4}
    cores = topology.num_cores
    assert found.sent == reduced.total * 2 * (cores - 1) / cores
    assert not found.collectives_outside
    assert found.aliases.are_complete
    assert found.aliases.missing == ()
    assert (found.aliases.donated, found.aliases.aliased) == (4, 4)
    assert found.cycles > 1000
    assert not found.has_unknown_loops
    assert not found.kernels
    assert found.roofline.by == "operations"


@pytest.mark.parametrize("steps", [1, slow(2), 8])
def test_costs_are_those_of_one_step(steps):
    found, _ = _cost(steps=steps)
    assert found.flops == pytest.approx(2 * 64 * 256**2 * 5, rel=0.03)
    assert [each.count for each in found.collectives] == [1]


def test_memory_by_kind_adds_up_to_the_compiler_total():
    found, compiled = _cost()
    needed, stats = found.memory, compiled.memory_analysis()
    assert needed.arguments["variables"].real == 2 * 256 * 256 * 4
    assert needed.arguments["slots"] == needed.arguments["variables"]
    assert needed.arguments["input"].logical == 3 * 64 * 256 * 4
    assert "unnamed" not in needed.arguments
    given = sum(held.real for held in needed.arguments.values())
    assert given == stats.argument_size_in_bytes
    assert needed.temporary == stats.temp_size_in_bytes
    assert 0 < needed.share < 0.01


def test_padding_and_unnamed_arguments_count():
    x = lowering.array(V5E, (3, 10))
    y = lowering.array(V5E, (), "int32")
    compiled = jax.jit(lambda x, y: jnp.sin(x) + y).lower(x, y).compile()
    needed = costs.step_cost(compiled, V5E, 1, {"input": x}).memory
    assert needed.arguments["input"].logical == 3 * 10 * 4
    assert needed.arguments["input"].real == 4 * 128 * 4
    assert needed.arguments["unnamed"].real == 512


def test_the_peak_predicts_programs_that_do_not_fit():
    limit = V5E.chip.memory_left
    # All rows take the same memory, so a few rows determine it.
    lowered, _ = lowering.training(V5E, 6_000_000, depth=1)
    with pytest.raises(DoesNotFitError) as raised:
        compiling.compiled(lowered, V5E)
    a_row = raised.value.used / 6_000_000
    found, _ = _cost(rows=int(0.99 * limit / a_row), depth=1)
    assert found.memory.peak == pytest.approx(0.99 * limit, rel=0.01)
    assert found.memory.peak < limit == found.memory.limit
    lowered, _ = lowering.training(V5E, int(1.01 * limit / a_row), depth=1)
    with pytest.raises(DoesNotFitError) as raised:
        compiling.compiled(lowered, V5E)
    assert raised.value.used == pytest.approx(1.01 * limit, rel=0.01)


def test_the_largest_arrays_are_named_by_layer():
    def layers(x, kernel):
        with jax.named_scope("dense_0"):
            x = jnp.tanh(x @ kernel)
        with jax.named_scope("dense_1"):
            return x[:, :8] + 1, x

    x = lowering.array(V5E, (2**18, 256))
    kernel = lowering.array(V5E, (256, 512))
    compiled = jax.jit(layers).lower(x, kernel).compile()
    found = costs.step_cost(compiled, V5E, 1, {}).largest
    assert found[0].operation.layer == "dense_0"
    assert found[0].bytes == 2**18 * 512 * 4
    sizes = [each.bytes for each in found]
    assert sizes == sorted(sizes, reverse=True)


def test_unused_donations_are_named():
    def halved(state):
        return {"kept": state["kept"] + 1, "cut": state["cut"][:8]}

    shapes = {
        "kept": lowering.array(V5E, (64, 128)),
        "cut": lowering.array(V5E, (32, 128)),
    }
    compiled = jax.jit(halved, donate_argnums=0).lower(shapes).compile()
    aliases = costs.step_cost(compiled, V5E, 1, {}).aliases
    assert not aliases.are_complete
    assert aliases.missing == ("[0][0]['cut']",)


def test_names_are_omitted_if_arguments_are_removed():
    def first(x, y):
        return x[:8] + 1

    x = lowering.array(V5E, (64, 128))
    compiled = jax.jit(first, donate_argnums=0).lower(x, x).compile()
    aliases = costs.step_cost(compiled, V5E, 1, {}).aliases
    assert (aliases.donated, aliases.aliased, aliases.missing) == (1, 0, None)
    compiled = jax.jit(first).lower(x, x).compile()
    aliases = costs.step_cost(compiled, V5E, 1, {}).aliases
    assert (aliases.donated, aliases.missing) == (0, ())


class _Unreadable:
    """A compiled program without readable text and statistics."""

    args_info = ()

    def as_text(self):
        return "HloModule of another kind\n"

    def memory_analysis(self):
        return None


def test_unknown_costs_are_none():
    found = costs.step_cost(_Unreadable(), V5E, 3, {"input": ()})
    assert (found.flops, found.bytes, found.cycles) == (None, None, None)
    assert found.roofline is None
    assert found.memory.peak is None
    assert found.memory.share is None
    assert not found.collectives
    assert not found.largest


def test_keys_and_wide_integers_have_the_size_that_jax_stores():
    key = jax.eval_shape(lambda: jax.random.key(0))
    wide = jax.ShapeDtypeStruct((3,), "int64")
    held = memory.sizes_by_kind({"key": key, "count": wide, "none": None}, None)
    assert {kind: each.logical for kind, each in held.items()} == {
        "key": 8,
        "count": 12,
        "none": 0,
    }


def test_the_roofline_is_that_of_a_core():
    chip = topologies.parse("tpu7x-8").chip
    found = costs.roofline(chip, chip.flops, chip.memory_speed / 2, 0.0, None)
    assert found == Roofline(compute=2.0, memory=1.0, network=0.0)
    assert found.by == "compute"


def test_peak_excludes_code():
    assert Memory({}, 1, 2, 4, limit=100).peak == 3
    assert Memory({}, 1, None, 4, limit=100).peak is None


def test_python_callbacks_are_named():
    def called(x):
        with jax.named_scope("dense"):
            jax.debug.print("{}", x[0, 0])
            return jax.pure_callback(jnp.tanh, x, x)

    x = lowering.array(V5E, (8, 128))
    compiled = jax.jit(called).lower(x).compile()
    names = costs.step_cost(compiled, V5E, 1, {}).callbacks
    line = called.__code__.co_firstlineno + 2
    assert {name.partition(" at ")[0] for name in names} == {
        "debug_print of dense",
        "pure_callback of dense",
    }
    assert {int(name.rpartition(":")[2]) for name in names} == {line, line + 1}
    compiled = jax.jit(jnp.tanh).lower(x).compile()
    assert not costs.step_cost(compiled, V5E, 1, {}).callbacks


def test_state_is_not_copied():
    found, _ = _cost()
    assert not found.state_copies
    # This step reads a complete array after writing a slice of it.
    shape = (256, 256)

    def run(state, rows):
        def step(state, row):
            after = state.at[row[0]].set(0.0)
            return after, (state * after).sum()

        return jax.lax.scan(step, state, rows)

    state = lowering.array(V5E, shape)
    rows = lowering.array(V5E, (3, 1), "int32")
    compiled = jax.jit(run, donate_argnums=0).lower(state, rows).compile()
    (copy,) = costs.step_cost(compiled, V5E, 3, {}).state_copies
    assert (copy.shape, copy.bytes) == (shape, 256 * 256 * 4)
    assert str(copy.operation) == "copy of state"


def test_a_step_that_is_limited_by_none_of_the_peaks():
    peaks = {"compute": 1.0, "memory": 2.0, "network": 2.5}
    assert Roofline(**peaks, compiler=5.9).by == "network"
    slow = Roofline(**peaks, compiler=6.1)
    assert (slow.by, slow.at_best) == ("operations", 6.1)
    peaks = {"compute": 1.0, "memory": 2.0, "network": 7.0}
    assert Roofline(**peaks, compiler=6.9).by == "network"
    assert Roofline(**peaks).by == "network"


def test_a_missing_estimate_makes_cycles_unknown():
    text = recorded.LOOPS
    assert '"estimated_cycles":"100"' in text
    missing = text.replace(
        '"estimated_cycles":"100"', f'"estimated_cycles":"{2**63 - 1}"'
    )
    for given, has_cycles in ((text, True), (missing, False)):
        parts = loops.split(hlo.parse(given), 1)
        cycles = costs._cycles(parts.step, 1.0)
        assert (cycles is not None) == has_cycles


@pytest.mark.parametrize("kind", CALLBACK_LINES)
def test_callbacks_are_named_once(kind):
    text = recorded.entry(*(line + _NAMED for line in CALLBACK_LINES[kind]))
    runs = loops.split(hlo.parse(text), steps=1).step
    is_of_python = kind in ("a TPU's", "a GPU's")
    expected = ("pure_callback of dense",) if is_of_python else ()
    assert costs.callbacks(runs) == expected
