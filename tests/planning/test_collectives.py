"""Each collective counts once, with its complete arrays, by dtype."""

import jax
import jax.numpy as jnp
import pytest
from helpers import slow
from jax.sharding import PartitionSpec

from keras_tpu_estimator.planning import hlo, loops, topologies, work
from tests.planning import lowering, recorded


def _of(*instructions, others="", cores=8):
    module = hlo.parse(recorded.entry(*instructions, others=others))
    runs = loops.split(module, steps=1).step
    return {each.kind: each for each in work.collectives(runs, cores)}


_X = "%x = bf16[16,128]{1,0:T(8,128)(2,1)} parameter(0)"
_BYTES = 16 * 128 * 2


@pytest.mark.parametrize(
    ("text", "kind", "whole", "sent"),
    [
        ("all-reduce(%x), replica_groups={{0,1},{2,3}}", "all-reduce", 1, 1),
        ("all-reduce(%x), replica_groups={}", "all-reduce", 1, 7 / 4),
        ("all-reduce(%x)", "all-reduce", 1, 7 / 4),
        ("all-reduce(%x), replica_groups=[2,4]<=[8]", "all-reduce", 1, 3 / 2),
        (
            "all-gather(%x), replica_groups=[2,4]<=[4,2]T(1,0)",
            "all-gather",
            4,
            3,
        ),
        (
            "reduce-scatter(%x), replica_groups=mesh['a'=2,'b'=4] {'b'}",
            "reduce-scatter",
            1,
            3 / 4,
        ),
        ("all-to-all(%x), replica_groups={{0,1,2,3}}", "all-to-all", 1, 3 / 4),
        (
            "collective-permute(%x), source_target_pairs={{0,1},{1,0}}",
            "collective-permute",
            1,
            1,
        ),
        ("ragged-all-to-all(%x)", "ragged-all-to-all", 1, 1),
    ],
)
def test_kinds_and_groups(text, kind, whole, sent):
    (found,) = _of(_X, f"%y = bf16[16,128] {text}").values()
    assert (found.kind, found.count) == (kind, 1)
    assert found.bytes == {"bfloat16": whole * _BYTES}
    assert found.sent == pytest.approx(sent * _BYTES)


def test_several_arrays_travel_together():
    (found,) = _of(
        _X,
        "%z = f32[4] parameter(1)",
        "%y = (bf16[16,128], f32[4]) all-reduce(%x, %z)",
    ).values()
    assert found.count == 1
    assert found.bytes == {"bfloat16": _BYTES, "float32": 16}
    assert found.total == _BYTES + 16


def test_asynchronous_collectives_count_once():
    found = _of(
        _X,
        "%s = (bf16[16,128], bf16[16,128], u32[], u32[]) "
        "collective-permute-start(%x), channel_id=1",
        "%d = bf16[16,128] collective-permute-done(%s)",
        "%a = bf16[16,128] all-reduce-start(%x), channel_id=2",
        "%b = bf16[16,128] all-reduce-done(%a)",
    )
    assert {kind: each.count for kind, each in found.items()} == {
        "collective-permute": 1,
        "all-reduce": 1,
    }
    assert {each.total for each in found.values()} == {_BYTES}


def _fusions(chain):
    """Two fusions with the same all-gather, as libtpu writes them."""
    return "".join(
        f"%{name} (p: bf16[16,128]) -> bf16[128,128] {{\n"
        "  %p = bf16[16,128] parameter(0)\n"
        f"  %g.{name} = bf16[128,128] all-gather(%p), channel_id=8, "
        f'frontend_attributes={{chain_id="{number}"}}\n}}\n'
        for name, number in (("one", "0"), ("two", chain))
    )


@pytest.mark.parametrize(("chain", "count"), [("0", 1), ("1", 2)])
def test_collectives_in_several_fusions_count_once(chain, count):
    (found,) = _of(
        _X,
        "%f = bf16[128,128] fusion(%x), kind=kCustom, calls=%one",
        "%g = bf16[128,128] fusion(%x), kind=kCustom, calls=%two",
        others=_fusions(chain),
    ).values()
    assert found.count == count


def test_a_sliced_sum_is_a_reduce_scatter():
    # libtpu writes all of them with one number.
    scattered = "".join(
        f"%all-reduce-scatter.{number} (p: bf16[16,128]) -> bf16[2,128] {{\n"
        "  %p = bf16[16,128] parameter(0)\n"
        f"  %s.{number} = bf16[16,128] all-reduce(%p), channel_id=1\n"
        "  %i = u32[] partition-id()\n"
        f"  ROOT %d.{number} = bf16[2,128] dynamic-slice(%s.{number}, %i, %i)\n"
        "}\n"
        for number in (1, 2)
    )
    (found,) = _of(
        _X,
        "%f = bf16[2,128] fusion(%x), calls=%all-reduce-scatter.1",
        "%g = bf16[2,128] fusion(%x), calls=%all-reduce-scatter.2",
        others=scattered,
    ).values()
    assert (found.kind, found.count) == ("reduce-scatter", 2)
    assert found.total == 2 * _BYTES
    assert found.sent == 2 * _BYTES * 7 / 8


def test_combined_sliced_sums_are_a_reduce_scatter():
    array, part, both = "bf16[16,128]", "bf16[2,128]", "(bf16[16,128], bf16[16,128])"
    scattered = (
        f"%all-reduce-scatter.1 (p: {array}) -> ({part}, {part}) {{\n"
        f"  %p = {array} parameter(0)\n"
        f"  %s = {both} all-reduce(%p, %p), channel_id=1\n"
        "  %i = u32[] partition-id()\n"
        f"  %a = {array} get-tuple-element(%s), index=0\n"
        f"  %b = {array} get-tuple-element(%s), index=1\n"
        f"  %c = {part} dynamic-slice(%a, %i, %i)\n"
        f"  %d = {part} dynamic-slice(%b, %i, %i)\n"
        f"  ROOT %t = ({part}, {part}) tuple(%c, %d)\n"
        "}\n"
    )
    fusion = f"%f = ({part}, {part}) fusion(%x), calls=%all-reduce-scatter.1"
    (found,) = _of(_X, fusion, others=scattered).values()
    assert (found.kind, found.count) == ("reduce-scatter", 1)
    assert found.total == 2 * _BYTES


def test_collectives_of_loops_count_in_each_iteration():
    module = hlo.parse(recorded.LOOPS)
    parts = loops.split(module, steps=3)
    (step,) = work.collectives(parts.step, cores=4)
    assert (step.kind, step.count) == ("all-reduce", 1)
    assert step.bytes == {"float32": 4096}
    (other,) = work.collectives(parts.outside, cores=4)
    assert (other.count, other.total) == (1, 4096)
    (half,) = work.collectives(parts.step, 4, share=0.5)
    assert (half.count, half.total, half.sent) == (0.5, 2048, 3072)


@pytest.mark.parametrize("name", ["v5e:2x2", slow("tpu7x:2x2x1")])
def test_collectives_of_compiled_programs(name):
    topology = topologies.parse(name)
    cores = topology.num_cores

    def exchange(x):
        part = jax.lax.psum_scatter(x, "batch", tiled=True)
        whole = jax.lax.all_gather(jnp.tanh(part), "batch", tiled=True)
        narrow = jax.lax.psum(x.astype("bfloat16"), "batch")
        ring = [(core, (core + 1) % cores) for core in range(cores)]
        moved = jax.lax.ppermute(jnp.sin(x), "batch", ring)
        turned = jax.lax.all_to_all(jnp.cos(x).reshape(cores, -1), "batch", 0, 0)
        return whole + narrow + moved + turned.reshape(x.shape)

    spec = PartitionSpec()
    function = jax.shard_map(
        exchange,
        mesh=lowering.mesh_of(topology),
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    x = lowering.array(topology, (1024, 128))
    text = jax.jit(function).lower(x).compile().as_text()
    runs = loops.split(hlo.parse(text), steps=1).step
    found = {each.kind: each for each in work.collectives(runs, cores)}
    size = 1024 * 128 * 4
    assert {kind: each.bytes for kind, each in found.items()} == {
        "reduce-scatter": {"float32": size},
        "all-gather": {"float32": size},
        "all-reduce": {"bfloat16": size / 2},
        "collective-permute": {"float32": size},
        "all-to-all": {"float32": size},
    }
    assert {each.count for each in found.values()} == {1}
