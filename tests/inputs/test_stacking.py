"""Tests that steps are copied once, into memory that is reused."""

import concurrent.futures
import gc
import weakref

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from keras_tpu_estimator.engine.inputs import stacking
from keras_tpu_estimator.engine.inputs.batch import Batch
from keras_tpu_estimator.engine.inputs.stacking import (
    Buffers,
    Stack,
    StackBuilder,
    Stacker,
    StackSize,
    even_share,
    is_ready,
)

FLOAT = np.dtype("float32")


def address(array):
    return array.ctypes.data


def address_on(device_array):
    return device_array.unsafe_buffer_pointer()


@pytest.mark.parametrize("dtype", [FLOAT, bool, ml_dtypes.bfloat16, "int64"])
@pytest.mark.parametrize("shape", [(3, 5), (2, 0), (1,)])
def test_buffers_are_aligned_and_writable(shape, dtype):
    array = Buffers().empty(shape, np.dtype(dtype))
    assert array.shape == shape and array.dtype == dtype
    assert address(array) % 64 == 0 or not array.size
    array[...] = 1
    assert array.all()


def test_slice_keeps_its_buffer():
    buffers = Buffers()
    part = buffers.empty((4, 4), FLOAT).reshape(2, 8)[1:].view("int32").T
    part[...] = 7
    assert not np.shares_memory(buffers.empty((4, 4), FLOAT), part)
    assert (part == 7).all()


@pytest.mark.parametrize("count", [1, 8])
def test_memory_that_jax_reads_is_not_reused(count):
    buffers = Buffers()
    array = buffers.empty((8, 1024), FLOAT)
    array[...] = 1
    own = address(array)
    mesh = jax.make_mesh((count,), ("x",), devices=jax.devices()[:count])
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    on_device = jax.block_until_ready(jax.device_put(array, rows))
    # Otherwise this test shows nothing.
    assert address_on(on_device.addressable_data(0)) == own
    del array
    other = buffers.empty((8, 1024), FLOAT)
    assert address(other) != own
    other[...] = 2
    assert float(on_device.sum()) == 8 * 1024
    del on_device
    gc.collect()
    jax.block_until_ready(jnp.zeros(()) + 1)  # When JAX releases it.
    assert address(buffers.empty((8, 1024), FLOAT)) == own


def test_running_programs_read_the_original_values():
    buffers = Buffers()

    @jax.jit
    def slow_sum(x):
        return jax.lax.fori_loop(
            0, 20, lambda i, total: total + jnp.sum(jnp.sin(x) * 0 + x), 0.0
        )

    sums = []
    for step in range(20):
        array = buffers.empty((256, 256), FLOAT)
        array[...] = step
        sums.append(slow_sum(array))
        del array
    np.testing.assert_allclose(sums, np.arange(20) * 20 * 2**16, rtol=1e-5)


def refilled(count):
    """Steps that share one array, which each step overwrites."""
    array = np.zeros((2, 3), "float32")
    for number in range(count):
        array[...] = number
        yield Stack.from_batch(Batch({"x": array}, None))


def test_each_step_is_copied_before_the_next_is_made():
    source = Stacker(refilled(7), stack_size=StackSize())
    batches = [source.take(n) for n in (3, 1, 3)]
    numbers = [batch.features["x"][:, 0, 0].tolist() for batch in batches]
    assert numbers == [[0, 1, 2], [3], [4, 5, 6]]
    assert all(is_ready(batch) for batch in batches)


def test_buffers_of_finished_steps_are_reused():
    source = Stacker(refilled(40), stack_size=StackSize())
    addresses = {address(source.take(4).features["x"]) for _ in range(10)}
    assert len(addresses) == 1


def test_borrowed_stacks_are_not_copied():
    stack = Buffers().empty((4, 2, 16), FLOAT)
    stack[...] = np.arange(4)[:, None, None]
    pieces = [Stack(stack, None, may_stay=True)]
    source = Stacker(iter(pieces), stack_size=StackSize())
    first, rest = source.take(3), source.take(3)
    assert address(first.features) == address(stack)
    assert address(rest.features) == address(stack[3])
    assert first.may_stay and rest.may_stay


def test_stacks_that_programs_cannot_read_are_copied():
    array = Buffers().empty((3, 4, 8), FLOAT)
    array[...] = np.arange(96).reshape(3, 4, 8)
    for unlike in (array[:, :, ::2], array.reshape(-1)[1:85].reshape(3, 4, 7)):
        piece = Stack(unlike, None, may_stay=True)
        assert not is_ready(piece)
        taken = Stacker(iter([piece]), stack_size=StackSize()).take(3)
        assert is_ready(taken)
        np.testing.assert_array_equal(taken.features, unlike)


def test_stack_has_the_number_of_added_steps():
    example = Batch((np.ones((2, 3), "int32"), None), np.ones(2, "float64"))
    stack = StackBuilder(Buffers(), Stack.from_batch(example), steps=5)
    stack.add(Stack.from_batch(example, 2))
    stack.add(Stack.from_batch(example))
    batch = stack.built()
    assert batch.steps == stack.steps == 3
    assert jax.tree.structure(batch.features) == jax.tree.structure((0, None))
    assert batch.labels.dtype == np.float64 and batch.labels.shape == (3, 2)
    assert batch.features[0].dtype == np.int32


def test_reused_memory_contains_no_overflowing_numbers():
    buffers, example = Buffers(), Stack.from_batch(Batch({"x": np.ones(2)}, None))
    buffers.empty((4, 2), np.dtype("float64"))[:] = 1e300
    stack = StackBuilder(buffers, example, steps=1, capacity=4)
    stack.add(example)
    features, _ = stack.built().padded_to(4)
    assert features["x"].tolist() == [[1, 1], [0, 0], [0, 0], [0, 0]]


@pytest.mark.parametrize("limit, unit", [("_MOST_SMALL", 1), ("_MOST_FREE", 5000)])
def test_memory_of_many_sizes_is_not_kept(monkeypatch, limit, unit):
    most = 10_000 * unit
    memory = stacking._FreeMemory(most)
    monkeypatch.setattr(stacking, "_small", memory)
    monkeypatch.setattr(stacking, limit, most)
    buffers = Buffers()
    for size in range(1000, 1100):
        buffers.empty((size * unit,), np.dtype("uint8"))
    free = memory if unit == 1 else buffers._large
    kept = sum(each.nbytes for each in [*free._free, *free._returned])
    # And the memory that was returned since.
    assert 0 < kept <= most + 1100 * unit + 64


def test_later_calls_use_the_memory_of_small_arrays():
    shape = (7, 1013)
    first = address(Buffers().empty(shape, FLOAT))
    assert address(Buffers().empty(shape, FLOAT)) == first
    # The memory of large arrays is freed with the call that used it.
    buffers = Buffers()
    buffers.empty((2**23,), np.dtype("uint8"))
    assert buffers._large._returned
    freed = weakref.ref(buffers._large)
    del buffers
    assert freed() is None


def test_threads_never_share_memory():
    def fill(number):
        buffers = Buffers()
        for _ in range(300):
            array = buffers.empty((50,), np.dtype("int64"))
            array[...] = number
            if (array != number).any():
                return False
        return True

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(fill, range(8)))


def test_arrays_without_numbers_are_stacked():
    example = Batch(np.ones((4, 0), "float32"), np.ones((4, 1), "float32"))
    stack = StackBuilder(Buffers(), Stack.from_batch(example), steps=2)
    stack.add(Stack.from_batch(example, 2))
    assert stack.built().features.shape == (2, 4, 0)


def test_single_steps_share_a_stack():
    def step(value, dtype=FLOAT, width=2):
        return Stack({"x": np.full((1, 3, width), value, dtype)}, np.ones(1))

    pieces = [step(1), step(2), step(9, width=5), step(8, np.dtype("int32")), step(3)]
    steps = Stacker(iter(pieces), StackSize())
    steps.keep_together(pieces[0], 2)
    first, second, *others, third = (steps.take(1) for _ in pieces)
    assert first.memory is second.memory
    assert (first.first_row, second.first_row, third.first_row) == (0, 1, 0)
    room, labels = first.memory
    assert labels is None
    np.testing.assert_array_equal(room["x"][:, 0, 0], [1, 2])
    assert np.shares_memory(room["x"][1], second.features["x"])
    assert not np.shares_memory(room["x"], third.features["x"])
    assert [each.features["x"].flat[0] for each in others] == [9, 8]
    assert [each.features["x"].dtype for each in others] == ["float32", "int32"]


def test_memory_of_future_steps_can_be_converted():
    wide = np.dtype("float64")
    buffers = Buffers()
    buffers.empty((4, 3), wide)[...] = 1e300
    piece = Stack(np.ones((1, 3)), None)
    steps = Stacker(iter([piece]), StackSize())
    steps._buffers = buffers
    steps.keep_together(piece, 4)
    room, _ = steps.take(1).memory
    np.testing.assert_array_equal(room[1:], 0)


@pytest.mark.parametrize(
    ("step_bytes", "size", "share"),
    [
        (4, StackSize(150), 25),
        (40, StackSize(150), 1),
        (40, StackSize(150, most=600), 8),
    ],
)
def test_stacks_have_equal_lengths(step_bytes, size, share):
    assert even_share(100, step_bytes, size) == share
