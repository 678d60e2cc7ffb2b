"""Tests of the times of runs: injected delays are found in their rows."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import keras
import numpy as np
import pytest
from helpers import estimator_of, model_fn_of, regression_data, repeated

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.common import ledger
from keras_tpu_estimator.engine.device import restoring
from keras_tpu_estimator.files.checkpoints import saving
from keras_tpu_estimator.files.summary import run_times
from keras_tpu_estimator.files.summary.run_times import TimeTable
from keras_tpu_estimator.runs import run_ledger

X, Y = regression_data(examples=64)
# A loaded machine adds time, but removes none.
DELAY, LESS, MORE = 0.4, 0.01, 0.2


def linear(features, is_training):
    return keras.layers.Dense(1, use_bias=False, name="dense")(features)


def table_of(directory):
    return TimeTable.from_runs(run_times.read(str(directory)))


class Delays:
    """Counts the calls of a function, one of which is slow."""

    def __init__(self, slow_call):
        self.calls, self._slow_call = 0, slow_call

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.calls == self._slow_call:
            time.sleep(DELAY)


class SlowHook(kte.hooks.SessionRunHook):
    """A hook whose first run is slow."""

    def __init__(self):
        self._delay = Delays(1)

    def after_run(self, run_context, run_values):
        self._delay()


def slowly(monkeypatch, owner, name, slow_call=1):
    """Makes one call of a method slow."""
    method, delay = getattr(owner, name), Delays(slow_call)

    def slow(*args, **kwargs):
        delay()
        return method(*args, **kwargs)

    monkeypatch.setattr(owner, name, slow)


def slow_batches(slow_batch):
    """An input with one slow batch, which loops of one step wait for."""
    delay = Delays(slow_batch)

    def input_fn(params):
        def batches():
            for _ in range(1000):
                delay()
                yield X[:8], Y[:8]

        return batches()

    return input_fn


def slow_start():
    delay = Delays(1)

    def input_fn(params):
        delay()
        return repeated(X, Y)(params)

    return input_fn


def _slow_input(estimator, monkeypatch):
    estimator.train(slow_start(), steps=4)


def _slow_batch(estimator, monkeypatch):
    # The reader is at most a few batches ahead of training.
    estimator.train(slow_batches(300), steps=320)


def _slow_hook(estimator, monkeypatch):
    estimator.train(repeated(X, Y), hooks=[SlowHook()], steps=4)


def _slow_last_save(estimator, monkeypatch):
    slowly(monkeypatch, saving, "save_into", slow_call=2)
    estimator.train(repeated(X, Y), steps=4)


def _slow_restore(estimator, monkeypatch):
    estimator.train(repeated(X, Y), steps=2)
    again = estimator_of(model_fn_of(linear), estimator.model_dir)
    slowly(monkeypatch, restoring, "load_checkpoint")
    again.train(repeated(X, Y), steps=2)


def _slow_evaluation(estimator, monkeypatch):
    estimator.train(repeated(X, Y), steps=2)
    estimator.evaluate(slow_start(), steps=1)


def _slow_validation(estimator, monkeypatch):
    estimator.train(
        repeated(X, Y),
        hooks=[
            kte.experimental.InMemoryEvaluatorHook(estimator, slow_start(), steps=1)
        ],
        steps=2,
    )


def _slow_model_fn(estimator, monkeypatch):
    estimator = estimator_of(_sleepy, estimator.model_dir)
    estimator.train(repeated(X, Y), steps=4)


def _sleepy(features, labels, mode, params):
    time.sleep(DELAY)
    return model_fn_of(linear)(features, labels, mode, params)


def _slow_devices(estimator, monkeypatch):
    import jax

    def model_fn(features, labels, mode, params):
        spec = model_fn_of(linear)(features, labels, mode, params)
        slow = Delays(3)

        def sleep(loss):
            slow()
            return np.float32(0)

        loss = jax.lax.stop_gradient(spec.loss)
        slept = jax.pure_callback(sleep, jax.ShapeDtypeStruct((), "float32"), loss)
        return spec._replace(loss=spec.loss + slept)

    estimator_of(model_fn, estimator.model_dir).train(repeated(X, Y), steps=8)


def _between_calls(estimator, monkeypatch):
    estimator.train(repeated(X, Y), steps=2)
    time.sleep(DELAY)
    estimator.train(repeated(X, Y), steps=2)


CASES = {
    "input": (_slow_input, _slow_batch),
    "hooks": (_slow_hook,),
    "saving": (_slow_last_save,),
    "restore": (_slow_restore,),
    "evaluation": (_slow_evaluation, _slow_validation),
    "compile": (_slow_model_fn,),
    "steps": (_slow_devices,),
    "between_calls": (_between_calls,),
}
ROWS = [(row, case) for row, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("row", "case"), ROWS)
def test_delays_are_found_in_their_rows(row, case, tmp_path, monkeypatch):
    def seconds(directory, delay):
        monkeypatch.setitem(globals(), "DELAY", delay)
        estimator = estimator_of(model_fn_of(linear), directory)
        with monkeypatch.context() as patches:
            case(estimator, patches)
        return table_of(directory).seconds

    for attempt in range(3):
        # Later directories of a process have no start.
        usual = seconds(tmp_path / f"usual{attempt}", 0.0)
        delayed = seconds(tmp_path / f"delayed{attempt}", 0.4)
        added = {name: delayed[name] - usual[name] for name in usual}
        assert delayed[row] > 0.4 - LESS, delayed
        others = sum(secs for name, secs in added.items() if name != row)
        # Other programs may delay any part.
        if added[row] < 0.4 + MORE and others < MORE:
            return
    pytest.fail(f"The delay is also in other rows: {added}.")


# Each step takes 0.1 s, and the step after `dies_after` kills the process at its end.
_PROGRAM = """
import os, signal, sys, time
import jax, keras, numpy as np
import keras_tpu_estimator as kte

model_dir, dies_after = sys.argv[1], int(sys.argv[2])
steps = 0

def sleep(loss):
    global steps
    time.sleep(0.1)
    steps += 1
    if steps > dies_after:
        os.kill(os.getpid(), signal.SIGKILL)
    return np.float32(0)

def model_fn(features, labels, mode, params):
    loss = keras.ops.mean((keras.layers.Dense(1)(features) - labels) ** 2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    train_op = optimizer.minimize(loss)
    stopped = jax.lax.stop_gradient(loss)
    slept = jax.pure_callback(sleep, jax.ShapeDtypeStruct((), "float32"), stopped)
    return kte.TPUEstimatorSpec(mode, loss=loss + slept, train_op=train_op)

def input_fn(params):
    while True:
        yield np.ones((8, 1), "float32"), np.ones((8, 1), "float32")

config = kte.RunConfig(
    save_checkpoints_steps=4,
    tpu_config=kte.TPUConfig(iterations_per_loop=LOOP),
    progress=False,
)
estimator = kte.TPUEstimator(model_fn, model_dir, config, use_tpu=False,
                             train_batch_size=8)
estimator.train(input_fn, max_steps=8)
"""


def started(directory, dies_after, loop):
    """Runs the program to its end, and returns when it began, ended, and its status."""
    program = _PROGRAM.replace("LOOP", str(loop))
    command = [sys.executable, "-c", program, str(directory), str(dies_after)]
    began = time.time()
    result = subprocess.run(command, check=False, timeout=100, capture_output=True)
    return began, time.time(), result.returncode


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize(("loop", "lost"), [(1, 0.3), (8, 0.7)])
def test_killed_run_has_lost_steps_and_time_until_the_next(tmp_path, loop, lost):
    _, ended, status = started(tmp_path, dies_after=6, loop=loop)
    assert status == -signal.SIGKILL
    (killed,) = run_times.read(str(tmp_path))
    assert 0.7 - 0.06 < killed.seconds["steps"] < 0.7 + MORE
    time.sleep(0.4)
    began, _, status = started(tmp_path, dies_after=100, loop=loop)
    assert status == 0
    times = table_of(tmp_path)
    assert times.runs == 2
    # Seven steps ran, of which the last three, or all, came after the checkpoint.
    assert lost - 0.06 < times.seconds["lost_steps"] < lost + MORE
    assert 0.8 - 0.02 < times.seconds["steps"] < 0.8 + 2 * MORE
    assert began - ended - 0.05 < times.seconds["down"] < began - ended + 2 * MORE
    assert times.goodput == times.seconds["steps"] / times.total


def test_calls_without_steps_add_little(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(repeated(X, Y), max_steps=4)
    before = table_of(tmp_path)
    estimator.train(repeated(X, Y), max_steps=4)
    assert table_of(tmp_path) == before


def saving_every(steps, model_dir):
    return estimator_of(
        model_fn_of(linear),
        model_dir,
        iterations=2,
        config={"save_checkpoints_steps": steps},
    )


def test_errors_and_interrupts_end_the_accounts(tmp_path):
    class Fails(kte.hooks.SessionRunHook):
        def __init__(self, error):
            self.error = error

        def after_run(self, run_context, run_values):
            if run_context.session.results.step == 6:
                time.sleep(0.1)
                raise self.error

    estimator = saving_every(4, tmp_path)
    for error in (RuntimeError("first"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            estimator.train(repeated(X, Y), hooks=[Fails(error)], max_steps=12)
        assert ledger.current() is None
        time.sleep(0.2)
    estimator.train(repeated(X, Y), max_steps=12)
    (run,) = run_times.read(str(tmp_path))
    assert run.seconds["hooks"] >= 0.2
    assert run.seconds["between_calls"] >= 0.4
    # The steps 5 and 6 ran three times.
    assert run.seconds["lost_steps"] > 0
    assert run.steps.points[-1][0] == 12


def test_predictions_that_stay_open_charge_nothing(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    opened = []

    class Predicts(kte.hooks.SessionRunHook):
        def after_run(self, run_context, run_values):
            rows = estimator.predict(lambda params: X, yield_single_examples=False)
            next(rows)
            opened.append(rows)
            time.sleep(0.1)

    estimator.train(repeated(X, Y), steps=2)
    estimator.train(repeated(X, Y), hooks=[Predicts()], steps=8)
    time.sleep(0.2)
    rows = estimator.predict(lambda params: X, yield_single_examples=False)
    next(rows)
    estimator.train(repeated(X, Y), steps=2)
    for generator in (*opened, rows):
        generator.close()
    seconds = table_of(tmp_path).seconds
    assert seconds["hooks"] >= 0.2 and seconds["between_calls"] >= 0.2


def test_each_directory_has_its_own_times(tmp_path):
    inner = estimator_of(model_fn_of(linear), tmp_path / "inner")
    outer = estimator_of(model_fn_of(linear), tmp_path / "outer")

    class Trains(kte.hooks.SessionRunHook):
        def after_run(self, run_context, run_values):
            inner.train(repeated(X, Y), hooks=[SlowHook()], steps=2)

    inner.train(repeated(X, Y), steps=2)
    outer.train(repeated(X, Y), hooks=[Trains()], steps=2)
    assert table_of(tmp_path / "inner").seconds["hooks"] >= DELAY
    seconds = table_of(tmp_path / "outer").seconds
    assert seconds["hooks"] >= DELAY
    assert seconds["restore"] < DELAY and seconds["between_calls"] < DELAY


def test_second_training_in_a_directory_charges_nothing(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    other = estimator_of(model_fn_of(linear), tmp_path)
    errors = []

    class Trains(kte.hooks.SessionRunHook):
        def after_run(self, run_context, run_values):
            try:
                other.train(repeated(X, Y), steps=2)
            except Exception as error:
                errors.append(error)

    estimator.train(repeated(X, Y), hooks=[Trains(), SlowHook()], steps=2)
    assert len(errors) == 1
    (run,) = run_times.read(str(tmp_path))
    assert run.seconds["hooks"] >= DELAY and run.seconds["between_calls"] < DELAY


def test_evaluation_in_another_thread_does_not_disturb_training(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(repeated(X, Y), steps=2)
    other = estimator_of(model_fn_of(linear), tmp_path)
    begun, end = threading.Event(), threading.Event()

    def waiting(params):
        begun.set()
        end.wait(60)
        return repeated(X, Y)(params)

    thread = threading.Thread(target=lambda: other.evaluate(waiting, steps=1))
    thread.start()
    begun.wait(60)
    estimator.train(repeated(X, Y), hooks=[SlowHook()], steps=2)
    end.set()
    thread.join()
    estimator.train(repeated(X, Y), hooks=[SlowHook()], steps=2)
    (run,) = run_times.read(str(tmp_path))
    assert run.seconds["hooks"] >= 2 * DELAY


def test_another_process_may_train_meanwhile(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(repeated(X, Y), steps=2)
    # It has other runs.
    run_ledger._RUNS.clear()
    other = estimator_of(model_fn_of(linear), tmp_path)
    other.train(repeated(X, Y), steps=2)
    run_ledger._RUNS.clear()
    estimator.train(repeated(X, Y), steps=2)
    estimator.train(repeated(X, Y), steps=2)
    runs = run_times.read(str(tmp_path))
    assert [run.steps.first for run in runs] == [0, 2, 4]
    assert [run.steps.points[-1][0] for run in runs] == [2, 4, 8]
    assert table_of(tmp_path).seconds["lost_steps"] == 0


def test_new_directory_has_a_new_run(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path / "run")
    estimator.train(repeated(X, Y), hooks=[SlowHook()], steps=2)
    os.rename(tmp_path / "run", tmp_path / "old")
    estimator.train(slow_start(), steps=2)
    times = table_of(tmp_path / "run")
    assert times.runs == 1 and times.seconds["hooks"] < DELAY
    # The time before the first checkpoint counts.
    assert times.seconds["input"] >= DELAY


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_training_goes_on_without_the_file(make, tmp_path, caplog):
    make(tmp_path / run_times.FILE_NAME)
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(repeated(X, Y), steps=2)
    assert "The times of this run are not recorded" in caplog.text
    assert run_times.read(str(tmp_path)) == []
    assert estimator.get_variable_value("global_step") == 2


def test_training_goes_on_if_the_file_cannot_be_written(tmp_path, monkeypatch, caplog):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_times.RunTimesFile, "write", full)
    estimator_of(model_fn_of(linear), tmp_path).train(repeated(X, Y), steps=2)
    assert "cannot be written: [Errno 28]" in caplog.text


def test_metric_writers_receive_the_times(tmp_path):
    from tensorboard.backend.event_processing import event_accumulator

    estimator = estimator_of(
        model_fn_of(linear), tmp_path, save_summary_steps=2, log_step_count_steps=2
    )
    for _ in range(2):
        estimator.train(repeated(X, Y), hooks=[SlowHook()], steps=2)
    text = (tmp_path / "metrics.jsonl").read_text()
    lines = [
        line for line in map(json.loads, text.splitlines()) if "time/hooks" in line
    ]
    assert [line["step"] for line in lines] == [2, 4]
    assert {*lines[0]} > {"step", "time", "loss", *table_of(tmp_path).scalars()}
    assert 0 < lines[0]["time/goodput"] < 1
    reader = event_accumulator.EventAccumulator(str(tmp_path)).Reload()
    hooks = [event.value for event in reader.Scalars("time/hooks")]
    assert hooks == pytest.approx([line["time/hooks"] for line in lines])
    assert hooks[0] >= DELAY and hooks[1] >= hooks[0] + DELAY


@pytest.mark.parametrize(
    "settings", [{"save_summary_steps": 2}, {"log_step_count_steps": 2}]
)
def test_writers_may_be_off(settings, tmp_path):
    estimator_of(model_fn_of(linear), tmp_path, **settings).train(
        repeated(X, Y), steps=2
    )
    for file in tmp_path.glob("*metrics.jsonl"):
        assert "time/" not in file.read_text()
    assert table_of(tmp_path).runs == 1


def test_saving_in_the_background_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "save_into", _slower(saving.save_into))
    estimator_of(model_fn_of(linear), tmp_path).train(repeated(X, Y), steps=2)
    times = table_of(tmp_path)
    # The checkpoints of the steps 0 and 2.
    assert times.saving >= 0.4


def _slower(function):
    def slow(*args, **kwargs):
        time.sleep(0.2)
        return function(*args, **kwargs)

    return slow


def test_remote_directories_have_the_file():
    url = "memory://bucket/times"
    estimator = estimator_of(model_fn_of(linear), url)
    for _ in range(2):
        estimator.train(repeated(X, Y), hooks=[SlowHook()], steps=2)
    (run,) = run_times.read(url)
    assert run.seconds["hooks"] >= 2 * DELAY
    assert run.steps.points[-1][0] == 4


def test_train_and_evaluate(tmp_path):
    estimator = saving_every(2, tmp_path)
    kte.train_and_evaluate(
        estimator,
        kte.TrainSpec(repeated(X, Y), max_steps=4),
        kte.EvalSpec(slow_start(), steps=1, throttle_secs=0),
    )
    seconds = table_of(tmp_path).seconds
    assert seconds["evaluation"] >= DELAY
    assert seconds["lost_steps"] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork.")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")
def test_forked_process_charges_nothing():
    with ledger.Charging(ledger.TimeLedger()):
        child = os.fork()
        if not child:
            os._exit(0 if ledger.current() is None and not run_ledger._RUNS else 1)
        assert os.waitpid(child, 0)[1] == 0
