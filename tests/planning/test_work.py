"""Operations and bytes are counted as XLA counts them, or better."""

import jax
import jax.numpy as jnp
import pytest

from keras_tpu_estimator.planning import hlo, loops, topologies, work
from tests.planning import lowering, recorded

_TOPOLOGY = topologies.parse("v5e:1x1")
_CONVOLVE = jax.lax.conv_general_dilated


def _convolution(**settings):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lambda x, k: _CONVOLVE(x, k, dimension_numbers=numbers, **settings)


def _compiled(function, *shapes, dtype="float32"):
    arrays = [lowering.array(_TOPOLOGY, shape, dtype) for shape in shapes]
    return jax.jit(function).lower(*arrays).compile()


def _step(compiled, steps=1):
    module = hlo.parse(compiled.as_text())
    return loops.split(module, steps).step, module.computations


@pytest.mark.rows(5)
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (jnp.matmul, [(256, 384), (384, 128)]),
        # Products of many pairs, which XLA writes as one convolution.
        (
            lambda x, y: jnp.einsum("bqhd,bkhd->bhqk", x, y),
            [(2, 64, 4, 32), (2, 64, 4, 32)],
        ),
        (
            _convolution(window_strides=(1, 1), padding="SAME"),
            [(8, 16, 16, 32), (3, 3, 32, 64)],
        ),
        (
            _convolution(window_strides=(2, 2), padding="VALID"),
            [(8, 17, 17, 32), (3, 5, 32, 64)],
        ),
        (
            _convolution(window_strides=(1, 1), padding="SAME", rhs_dilation=(2, 3)),
            [(4, 20, 20, 16), (3, 3, 16, 128)],
        ),
        (
            _convolution(window_strides=(1, 1), padding="SAME", feature_group_count=4),
            [(8, 16, 16, 64), (3, 3, 16, 64)],
        ),
        (
            jax.grad(
                lambda x, k: jnp.sum(
                    _convolution(window_strides=(2, 2), padding="SAME")(x, k) ** 2
                ),
                argnums=(0, 1),
            ),
            [(8, 16, 16, 32), (3, 3, 32, 64)],
        ),
        (lambda x: jnp.sum(jnp.tanh(x) * 2 + x), [(512, 512)]),
    ],
)
def test_operations_match_xla(function, shapes):
    compiled = _compiled(function, *shapes)
    step, _ = _step(compiled)
    expected = compiled.cost_analysis()["flops"]
    assert work.flops(step) == pytest.approx(expected, rel=0.02)


def test_operations_of_inner_loops_count_in_each_iteration():
    def run(x, kernel):
        def inner(state, _):
            return jnp.tanh(state @ kernel), None

        return jax.lax.scan(inner, x, None, length=7)[0]

    compiled = _compiled(run, (128, 256), (256, 256))
    step, _ = _step(compiled)
    once = 2 * 128 * 256 * 256
    assert work.flops(step) == pytest.approx(7 * once, rel=0.02)
    # XLA counts them only once.
    assert compiled.cost_analysis()["flops"] < 2 * once


def test_products_in_other_notations():
    text = recorded.entry(
        "%x = f32[2,3,5] parameter(0)",
        "%y = f32[2,5,7] parameter(1)",
        "%z = f32[2,3,7] dot(%x, %y), lhs_batch_dims={0}, "
        "lhs_contracting_dims={2}, rhs_batch_dims={0}, "
        "rhs_contracting_dims={1}",
    )
    assert work.flops(loops.split(hlo.parse(text), 1).step) == 2 * 2 * 3 * 5 * 7


def test_array_is_read_and_written_once():
    step, computations = _step(_compiled(jnp.tanh, (4096, 8192)))
    assert work.bytes_moved(step, computations) == 2 * 4096 * 8192 * 4


def test_a_slice_reads_only_itself():
    def run(batches):
        def step(total, batch):
            return total + jnp.sum(jnp.sin(batch)), None

        return jax.lax.scan(step, 0.0, batches)[0]

    step, computations = _step(_compiled(run, (16, 1024, 4096)), steps=16)
    moved = work.bytes_moved(step, computations)
    assert moved == pytest.approx(1024 * 4096 * 4, rel=0.01)


def test_an_update_writes_only_the_new_part():
    def run(whole, part):
        return jax.lax.dynamic_update_slice(whole, jnp.sin(part), (64, 0))

    arrays = (lowering.array(_TOPOLOGY, shape) for shape in [(65536, 512), (4096, 512)])
    compiled = jax.jit(run, donate_argnums=0).lower(*arrays).compile()
    step, computations = _step(compiled)
    moved = work.bytes_moved(step, computations)
    assert moved == pytest.approx(2 * 4096 * 512 * 4, rel=0.01)


def test_values_in_small_memory_are_not_moved():
    text = recorded.entry(
        "%x = f32[1024]{0:T(1024)} parameter(0)",
        "%s = (f32[1024]{0:T(1024)S(1)}, f32[1024]{0:T(1024)}, u32[]{:S(2)}) "
        "copy-start(%x)",
        "%d = f32[1024]{0:T(1024)S(1)} copy-done(%s)",
        "%y = f32[1024]{0:T(1024)S(1)} tanh(%d)",
        "%z = f32[1024]{0:T(1024)} tanh(%y)",
        "%c = f32[1024]{0:T(1024)} copy(%z)",
    )
    module = hlo.parse(text)
    step = loops.split(module, steps=1).step
    # Read by the copy that is started, written, and copied.
    assert work.bytes_moved(step, module.computations) == 4 * 4096
    assert work.bytes_copied(step) == 4096


def test_kernels_are_named():
    text = recorded.entry(
        '%a = f32[] custom-call(%x), custom_call_target="tpu_custom_call"',
        '%b = f32[] custom-call(), custom_call_target="AllocateBuffer"',
        '%c = f32[] custom-call(%x), custom_call_target="__cudnn$fmha"',
        '%d = f32[] custom-call(%x), custom_call_target="tpu_custom_call"',
        '%e = f32[] custom-call(%x), custom_call_target="__cublas$gemm"',
    )
    step = loops.split(hlo.parse(text), steps=1).step
    assert work.kernels(step) == ("__cudnn$fmha", "tpu_custom_call")


@pytest.mark.parametrize(("part", "products"), [("fwd", 2), ("dq", 3), ("dkv", 4)])
@pytest.mark.parametrize("batch", ["2,", ""])
def test_attention_counts_the_blocks_that_queries_see(part, products, batch):
    """Without a batch, JAX omits its axis. Two heads of queries share one of keys."""
    text = recorded.entry(
        "%m = s8[1,4,4] parameter(0)",
        f"%q = bf16[{batch}4,2048,64] parameter(1)",
        f"%k = bf16[{batch}2,1024,64] parameter(2)",
        f"%v = bf16[{batch}2,1024,64] parameter(3)",
        f"%a = bf16[{batch}4,2048,64] custom-call(%m, %q, %k, %v), "
        'custom_call_target="tpu_custom_call", metadata={op_name="jit(f)/'
        f'attention_of_6_of_8_blocks/splash_mha_{part}/pallas_call"}}',
    )
    step = loops.split(hlo.parse(text), steps=1).step
    examples = 2 if batch else 1
    expected = 2 * products * examples * 4 * 2048 * 1024 * 64 * 6 / 8
    assert work.flops(step) == expected
    assert work.kernels(step) == ()
    assert work.attentions(step) == (part == "fwd")


_FORWARD = (8 * 16 * 16 * 3 * 3) * 32 * 64 * 2


@pytest.mark.parametrize(
    ("result", "operands", "target"),
    [
        ("y", "x, k", "__cudnn$convForward"),
        ("y", "x, k, s", "__cudnn$convBiasActivationForward"),
        ("x", "y, k", "__cudnn$convBackwardInput"),
        ("k", "x, y", "__cudnn$convBackwardFilter"),
    ],
)
def test_convolutions_of_libraries_are_counted(result, operands, target):
    types = {
        "x": "f32[8,18,18,32]",
        "y": "f32[8,16,16,64]",
        "k": "f32[3,3,32,64]",
        "s": "f32[64]",
    }
    text = recorded.entry(
        *(
            f"%{name} = {kind} parameter({number})"
            for number, (name, kind) in enumerate(types.items())
        ),
        f"%r = ({types[result]}, u8[0]) custom-call("
        + ", ".join(f"%{name}" for name in operands.split(", "))
        + "), window={size=3x3}, dim_labels=b01f_01io->b01f, "
        f'custom_call_target="{target}"',
    )
    step = loops.split(hlo.parse(text), steps=1).step
    assert work.flops(step) == _FORWARD
    assert not work.kernels(step)


def test_products_of_libraries_are_counted():
    text = recorded.entry(
        "%x = f32[3,5] parameter(0)",
        "%y = f32[5,7] parameter(1)",
        "%z = (f32[3,7], s8[4096]) custom-call(%x, %y), "
        'custom_call_target="__cublas$gemm", backend_config={"gemm_backend_'
        'config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],'
        '"rhs_contracting_dimensions":["0"]}}}',
    )
    step = loops.split(hlo.parse(text), steps=1).step
    assert work.flops(step) == 2 * 3 * 5 * 7
