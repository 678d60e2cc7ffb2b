"""Tests that `predict` runs all batches that are ready at once."""

import itertools
import queue
import time

import jax
import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.engine.device.device_loop import DeviceLoop
from keras_tpu_estimator.engine.inputs.stacking import Stack, StackBuilder
from keras_tpu_estimator.runs.prediction import Patience, Rooms, RunSizes
from keras_tpu_estimator.runs.prediction_batches import Padded

X = np.arange(8 * 50 * 3, dtype="float32").reshape(-1, 3)


def doubling(features, labels, mode, params):
    return kte.TPUEstimatorSpec(mode, {"double": 2 * features})


@pytest.fixture
def runs(monkeypatch):
    """The number of batches in each run."""
    found = []
    run_some, run_one = DeviceLoop.predict_some, DeviceLoop.predict

    def some(self, step, assigned, others, data, steps, fetch=()):
        found.append(len(steps))
        return run_some(self, step, assigned, others, data, steps, fetch)

    def one(self, *args):
        found.append(1)
        return run_one(self, *args)

    monkeypatch.setattr(DeviceLoop, "predict_some", some)
    monkeypatch.setattr(DeviceLoop, "predict", one)
    return found


@pytest.mark.parametrize("use_tpu", [False, True])
def test_ready_batches_share_runs(tmp_path, runs, use_tpu):
    estimator = estimator_of(doubling, tmp_path, use_tpu, batch=8)
    x = X[:-3]
    rows = [row["double"] for row in estimator.predict(batches_of(x))]
    np.testing.assert_array_equal(rows, 2 * x)
    assert sum(runs) == 50
    assert runs[0] == 1  # The first result does not wait for further batches.


def test_batch_is_copied_once(tmp_path, monkeypatch):
    copied, add = [], StackBuilder.add
    monkeypatch.setattr(
        StackBuilder,
        "add",
        lambda self, steps: (copied.append(steps), add(self, steps)),
    )
    estimator = estimator_of(doubling, tmp_path, batch=8)
    rows = [row["double"] for row in estimator.predict(batches_of(X))]
    np.testing.assert_array_equal(rows, 2 * X)
    # The first batch is separate because the size of its runs is unknown.
    assert len(copied) <= len(X) // 8 + 1


def test_next_run_begins_while_the_caller_has_results(tmp_path, runs):
    x = np.zeros((50, 8, 4096), "float32")  # A run has eight batches.
    produced, yielded = 0, 0

    def input_fn(params):
        nonlocal produced
        for batch in x:
            produced += 1
            yield batch

    estimator = estimator_of(doubling, tmp_path, batch=8)
    for _ in estimator.predict(input_fn, yield_single_examples=False):
        yielded += 1
        if 20 < yielded <= 40:
            assert sum(runs) >= yielded + 1
        deadline = time.monotonic() + 10
        # The ninth batch is produced after the eighth is ready.
        while produced < min(50, sum(runs) + 9) and time.monotonic() < deadline:
            time.sleep(0.001)
    assert yielded == 50 and max(runs) == 8


def test_run_is_at_most_as_large_as_all_previous_runs():
    sizes = RunSizes(clock=iter(range(0, 100)).__next__)
    with sizes.awaited(1):
        assert sizes.size == 1
    sizes = RunSizes(clock=itertools.repeat(0.0).__next__)
    found = []
    for _ in range(7):
        found.append(sizes.size)
        with sizes.awaited(sizes.size):
            pass
    assert found == [1, 1, 2, 4, 8, 16, 32]


def test_slow_runs_are_shortened():
    times = iter([0.0, 0.0, 1.0, 2.0, 3.0, 4.0])
    sizes = RunSizes(clock=times.__next__)
    found = []
    for _ in range(3):
        with sizes.awaited(32):
            pass
        found.append(sizes.size)
    assert found == [32, 16, 8]


def padded(size):
    features = np.zeros((1, size, 3), "float32")
    return Padded(Stack(features, np.zeros((1, size), bool)), size)


def test_room_depends_on_the_order_of_batches():
    rooms = Rooms(lambda batch: 100)
    found = [rooms.room(padded(size)) for size in (8, 8, 5, 8, 5, 3)]
    assert found == [32, 32, 1, 32, 32, 1]
    assert Rooms(lambda batch: 2**23).room(padded(8)) == 1
    assert Rooms(lambda batch: 100, is_single=True).room(padded(8)) == 1


def test_input_may_wait_for_each_result(tmp_path):
    answers = queue.Queue()

    def input_fn(params):
        yield X[:8]
        for _ in range(12):
            yield answers.get(timeout=60)

    estimator = estimator_of(doubling, tmp_path, batch=8)
    count = 0
    for batch in estimator.predict(input_fn, yield_single_examples=False):
        np.testing.assert_array_equal(batch["double"], X[:8] * 2 ** (count + 1))
        answers.put(batch["double"])
        count += 1
    assert count == 13


def test_hooks_without_due_steps_see_each_batch(tmp_path, runs):
    class Counting(kte.hooks.SessionRunHook):
        seen = ()

        def before_run(self, run_context):
            return kte.hooks.SessionRunArgs("double")

        def after_run(self, run_context, run_values):
            self.seen = (*self.seen, run_values.results)

    hook = Counting()
    estimator = estimator_of(doubling, tmp_path, batch=8)
    rows = list(estimator.predict(batches_of(X), hooks=[hook]))
    assert {*runs} == {1} and len(hook.seen) == 50
    np.testing.assert_array_equal(
        np.concatenate(hook.seen), [row["double"] for row in rows]
    )


def test_runs_end_at_steps_that_hooks_name(tmp_path):
    class AtSeventh(kte.hooks.SessionRunHook):
        def due_steps(self, start):
            return range(start + 7, 10_000, 7)

        def before_run(self, run_context):
            return kte.hooks.SessionRunArgs("double")

        def after_run(self, run_context, run_values):
            last = run_values.results[-1, -1] / 2
            seen.append(int(np.flatnonzero(X[:, -1] == last)[0]) // 8 + 1)

    seen = []
    estimator = estimator_of(doubling, tmp_path, batch=8)
    list(estimator.predict(batches_of(X), hooks=[AtSeventh()]))
    assert {7, 14, 21, 28, 35, 42, 49} <= {*seen}
    assert seen == sorted(seen)


def numbered(features, labels, mode, params):
    """Counts the batches of a call in a variable."""
    count = keras.Variable(0.0, name="count", trainable=False)
    count.assign(count + 1)
    rows = features[:, 0] * 0 + count
    return kte.TPUEstimatorSpec(mode, {"number": rows})


def test_batches_see_the_state_of_the_previous_batch(tmp_path):
    estimator = estimator_of(numbered, tmp_path, batch=8)
    for _ in range(2):
        rows = [row["number"] for row in estimator.predict(batches_of(X))]
        assert rows == [1 + n // 8 for n in range(len(X))]


def failing_at(place):
    def check(x):
        if (x == X[8 * place, 0]).any():
            raise LookupError("mine")
        return x

    def model_fn(features, labels, mode, params):
        x = features[:, 0]
        checked = jax.pure_callback(check, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        count = keras.Variable(0.0, name="count", trainable=False)
        count.assign(count + 1)
        return kte.TPUEstimatorSpec(mode, {"x": checked, "n": 0 * x + count})

    return model_fn


@pytest.mark.parametrize("place", [0, 1, 23, 49])
def test_batches_before_a_failure_have_results(tmp_path, place):
    estimator = estimator_of(failing_at(place), tmp_path, False, batch=8)
    rows = []
    with pytest.raises(Exception, match="mine") as caught:
        for row in estimator.predict(batches_of(X)):
            rows.append((row["x"], row["n"]))
    expected = [(X[n, 0], 1 + n // 8) for n in range(8 * place)]
    assert rows == expected
    notes = "".join(caught.value.__notes__)
    assert not place or f"batch {place + 1} of `predict`" in notes


def test_host_calls_are_made_in_the_order_of_batches(tmp_path):
    def note(x):
        events.append(("host_call", x[0, 0]))

    def model_fn(features, labels, mode, params):
        return kte.TPUEstimatorSpec(mode, {"x": features}, host_call=(note, [features]))

    events = []
    estimator = estimator_of(model_fn, tmp_path, batch=8)
    for batch in estimator.predict(batches_of(X), yield_single_examples=False):
        events.append(("yield", batch["x"][0, 0]))
    firsts = X[::8, 0].tolist()
    assert events == [
        (what, first) for first in firsts for what in ("host_call", "yield")
    ]


def test_results_do_not_keep_other_batches_in_memory(tmp_path):
    estimator = estimator_of(doubling, tmp_path, False, batch=8)
    batches = list(estimator.predict(batches_of(X), yield_single_examples=False))
    for batch in batches[1:]:
        base = batch["double"]
        while base.base is not None:
            base = base.base
        assert base.nbytes == batch["double"].nbytes


def test_changing_lengths_share_runs(tmp_path):
    def model_fn(features, labels, mode, params):
        return kte.TPUEstimatorSpec(mode, {"sum": ops.sum(features, -1)})

    def input_fn(params):
        for length in LENGTHS:
            yield np.full((8, length), 1.0, "float32")

    LENGTHS = [3, 3, 5, 3, 5, 5, 5, 7, 3, 3] * 4
    estimator = estimator_of(model_fn, tmp_path, batch=8)
    rows = [row["sum"] for row in estimator.predict(input_fn)]
    assert rows == [n for n in LENGTHS for _ in range(8)]


def test_single_batch_of_arrays_has_its_own_run(tmp_path, runs, monkeypatch):
    estimator = estimator_of(doubling, tmp_path, batch=8)
    monkeypatch.setattr(DeviceLoop, "result_bytes", None)
    assert len(list(estimator.predict(lambda params: X[:8]))) == 8
    assert runs == [1]


def test_waits_in_vain_halve_the_patience():
    patience = Patience()
    usual = patience.secs
    patience.note(is_vain=True)
    assert patience.secs == usual / 2
    patience.note(is_vain=False)
    assert patience.secs == usual
