"""Tests an estimator whose `model_dir` is a URL."""

import collections
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import second_process
from helpers import (
    batches_of,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    repeated,
)

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.__main__ import main
from keras_tpu_estimator.api.hooks.session_run_hook import LoopHook
from keras_tpu_estimator.base.storage import paths, transfers
from keras_tpu_estimator.files.summary.event_file import read_scalars

URL = "memory://bucket/run"
X, Y = regression_data()
TRAIN = repeated(X, Y)
HELD_OUT = batches_of(X, Y)


class Crash(Exception):
    """An error that interrupts training."""


class CrashAt(LoopHook):
    """Raises an error at the end of a loop."""

    acts_last = True

    def __init__(self, step):
        self.step = step

    def after_run(self, run_context, run_values):
        if run_context.session.run("global_step") == self.step:
            run_context.session.saved_step(URL)
            raise Crash


def new_estimator(model_dir=URL, model_fn=None, save_summary_steps=None, **config):
    return estimator_of(
        model_fn or model_fn_of(linear),
        model_dir,
        iterations=1,
        save_summary_steps=save_summary_steps,
        config={"save_checkpoints_steps": 2, "keep_checkpoint_max": 2} | config,
    )


def names(url=URL):
    return sorted(paths.names_in(url))


def saved(url=URL):
    """The steps of the existing checkpoints."""
    files = [name for name in names(url) if name.endswith(".h5")]
    return [int(file[len("model.ckpt-") : -len(".h5")]) for file in files]


@pytest.fixture
def local(tmp_path, monkeypatch):
    """The working directory, which must stay empty."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not list(tmp_path.iterdir())


def test_train_evaluate_predict(memory, local):
    estimator = new_estimator()
    assert estimator.model_dir == estimator.config.model_dir == URL
    assert estimator.eval_dir("held_out") == f"{URL}/eval_held_out"
    estimator.train(TRAIN, max_steps=5)
    assert saved() == [4, 5]
    assert estimator.latest_checkpoint() == f"{URL}/model.ckpt-5"

    result = estimator.evaluate(HELD_OUT)
    transfers._KEPT.clear()
    other = new_estimator()
    assert other.evaluate(HELD_OUT) == result
    assert other.get_variable_value("dense/bias") == (
        estimator.get_variable_value("dense/bias")
    )
    first, second = (
        np.stack([row["y"] for row in each.predict(lambda params: X)])
        for each in (estimator, other)
    )
    np.testing.assert_array_equal(first, second)
    earlier = other.evaluate(HELD_OUT, checkpoint_path=f"{URL}/model.ckpt-4")
    assert earlier["global_step"] == 4


def test_call_sends_few_requests(memory, local, monkeypatch):
    requests, running = [], []

    def counted(function):
        def call(*args, **kwargs):
            # A request of the store's own code is part of the one that is running.
            if not running:
                requests.append(function.__name__)
            running.append(function)
            try:
                return function(*args, **kwargs)
            finally:
                running.pop()

        return call

    estimator = new_estimator().train(TRAIN, max_steps=4)
    store = type(memory)
    for name in ("info", "ls", "open", "rm_file", "get_file", "put_file", "pipe_file"):
        monkeypatch.setattr(store, name, counted(getattr(store, name)))
    estimator.train(TRAIN, steps=1)
    assert 30 < len(requests) <= 60, collections.Counter(requests)


def test_call_continues_where_another_one_ended(memory, tmp_path):
    whole = new_estimator(tmp_path).train(TRAIN, max_steps=6)
    new_estimator().train(TRAIN, max_steps=3)
    transfers._KEPT.clear()
    parts = new_estimator().train(TRAIN, steps=3)
    # Each call reads its input from the start.
    assert checkpoints.step_of(parts.latest_checkpoint()) == 6
    assert parts.get_variable_names() == whole.get_variable_names()


def test_interrupted_call_continues_its_input(memory, tmp_path):
    whole = new_estimator(tmp_path).train(TRAIN, max_steps=7)
    with pytest.raises(Crash):
        new_estimator().train(TRAIN, hooks=[CrashAt(5)], max_steps=7)
    assert [name for name in names() if name.startswith("model.ckpt-4.input.")]
    transfers._KEPT.clear()
    parts = new_estimator().train(TRAIN, max_steps=7)
    for name in whole.get_variable_names():
        np.testing.assert_array_equal(
            parts.get_variable_value(name), whole.get_variable_value(name)
        )
    assert not [name for name in names() if "-7.input." in name]


def test_event_files_and_metrics_exist_at_the_end(memory, local):
    config = kte.RunConfig(model_dir=URL, save_summary_steps=2, log_step_count_steps=2)
    for steps in (4, 8):
        estimator = kte.TPUEstimator(
            model_fn_of(linear),
            config=config,
            use_tpu=False,
            train_batch_size=16,
            eval_batch_size=16,
        )
        estimator.train(TRAIN, max_steps=steps)
    with paths.opened(f"{URL}/metrics.jsonl") as file:
        lines = [json.loads(line) for line in file.read().splitlines()]
    assert lines[0]["step"] < 4 < lines[-1]["step"]
    written = read_scalars(paths.matching(f"{URL}/events.out.*"))
    assert {"loss", "global_step/sec"} <= {t for v in written.values() for t in v}

    result = estimator.evaluate(HELD_OUT, name="held_out")
    found = kte.experimental.read_eval_metrics(estimator.eval_dir("held_out"))
    assert found[8]["loss"] == pytest.approx(result["loss"])


def test_commands_report_a_url(memory, tmp_path, capsys):
    reports = {}
    for model_dir in (URL, str(tmp_path)):
        estimator = new_estimator(model_dir, save_summary_steps=2)
        estimator.train(TRAIN, max_steps=4).evaluate(HELD_OUT)
        transfers._KEPT.clear()
        for path in (model_dir, f"{model_dir}/model.ckpt-2"):
            assert main(["info", path]) == 0
            output, _, _ = capsys.readouterr().out.partition("\n\ntime ")
            reports.setdefault(model_dir, []).append(output.replace(model_dir, "RUN"))
        assert main(["verify", model_dir]) == 0
        assert capsys.readouterr().out.count("intact") == 2
    assert " 0 bytes" not in reports[URL][0]
    assert "\neval             step = 4, loss = " in reports[URL][0]
    assert "\ntraining         step = 3, " in reports[URL][0]
    # The sizes of HDF5 files may differ by a few bytes.
    size = re.compile(r"[\d.]+ (?:bytes|kB)")
    for remote, local_one in zip(*reports.values(), strict=True):
        assert size.sub("", remote) == size.sub("", local_one)


def test_metric_writers_can_have_a_url_of_their_own(memory, tmp_path):
    own = "memory://bucket/own"
    for name in ("first", "second"):
        writers = [kte.summary.JsonLines(own), kte.summary.TensorBoard(own)]
        estimator = estimator_of(
            model_fn_of(linear),
            tmp_path / name,
            save_summary_steps=4,
            log_step_count_steps=4,
            config={"metric_writers": writers},
        )
        estimator.train(TRAIN, max_steps=4).evaluate(HELD_OUT)
    for url, count in ((own, 2), (f"{own}/eval", 2)):
        with paths.opened(f"{url}/metrics.jsonl") as file:
            steps = [json.loads(line)["step"] for line in file.read().splitlines()]
        assert steps.count(4) >= count
        assert read_scalars(paths.matching(f"{url}/events.out.*"))


def test_host_call_writes_to_a_url(memory, local):
    base = model_fn_of(linear)

    def host_call(step, loss):
        with kte.summary.create_file_writer(f"{URL}/host").as_default():
            kte.summary.scalar("host_loss", loss[0], step=step[0])

    def model_fn(features, labels, mode, params):
        spec = base(features, labels, mode, params)
        step = kte.get_global_step()
        return kte.TPUEstimatorSpec(
            mode,
            loss=spec.loss,
            train_op=spec.train_op,
            host_call=(host_call, [step[None], spec.loss[None]]),
        )

    new_estimator(model_fn=model_fn).train(TRAIN, steps=3)
    (file,) = paths.matching(f"{URL}/host/events.out.*")
    with paths.opened(file) as stream:
        assert stream.read().count(b"host_loss") == 3


@pytest.mark.parametrize("end", ["-4.h5", "checkpoint"])
def test_unwritable_checkpoint_is_an_error(end, memory, monkeypatch):
    put = transfers.put
    is_down = []

    def put_or_fail(local, path):
        if path.endswith("-4.h5"):
            is_down.append(path)
        if is_down and path.endswith(end):
            raise ConnectionError("the network is down")
        put(local, path)

    monkeypatch.setattr(transfers, "put", put_or_fail)
    with pytest.raises(ConnectionError, match="network is down"):
        new_estimator().train(TRAIN, max_steps=20)
    monkeypatch.setattr(transfers, "put", put)
    assert kte.latest_checkpoint(URL) == f"{URL}/model.ckpt-2"
    new_estimator().train(TRAIN, max_steps=6)
    assert kte.latest_checkpoint(URL) == f"{URL}/model.ckpt-6"


def test_unwritable_event_files_are_an_error(memory, monkeypatch):
    def fail(content, url):
        raise ConnectionError("the network is down")

    estimator = new_estimator()
    estimator.train(TRAIN, max_steps=2)
    with monkeypatch.context() as patch:
        patch.setattr(transfers, "put_bytes", fail)
        with pytest.raises(ConnectionError, match="network is down"):
            estimator.evaluate(HELD_OUT)
    estimator.evaluate(HELD_OUT)
    events, lines = sorted(names(estimator.eval_dir()))
    assert events.startswith("events.") and lines == "metrics.jsonl"


def test_failing_store_does_not_restart_training(memory, monkeypatch):
    new_estimator().train(TRAIN, max_steps=2)

    def fail(self, path, **_):
        raise PermissionError("no access to the bucket")

    monkeypatch.setattr(memory.__class__, "info", fail)
    with pytest.raises(PermissionError, match="no access"):
        new_estimator().train(TRAIN, max_steps=4)


def test_values_in_memory_are_not_downloaded(memory, monkeypatch):
    def fetch(url, local, fetch=transfers.fetch):
        # The next evaluation continues this file.
        assert url.endswith("metrics.jsonl")
        fetch(url, local)

    monkeypatch.setattr(transfers, "fetch", fetch)
    estimator = new_estimator()
    for steps in (2, 5):
        estimator.train(TRAIN, max_steps=steps)
        estimator.evaluate(HELD_OUT)
        next(estimator.predict(lambda params: X))


def test_train_and_evaluate(memory, local):
    metrics, _ = kte.train_and_evaluate(
        new_estimator(keep_best=checkpoints.KeepBest()),
        kte.TrainSpec(TRAIN, max_steps=6),
        kte.EvalSpec(HELD_OUT, steps=None, throttle_secs=0),
    )
    assert metrics["global_step"] == 6
    assert checkpoints.training_is_complete(URL)
    assert checkpoints.best(URL) == f"{URL}/model.ckpt-6"
    evaluated = kte.experimental.read_eval_metrics(f"{URL}/eval")
    assert list(evaluated) == [2, 4, 6]


def test_evaluator_sees_checkpoints_of_another_process(memory):
    new_estimator().train(TRAIN, max_steps=4)
    transfers._KEPT.clear()
    spec = kte.EvalSpec(HELD_OUT, steps=None, start_delay_secs=0)
    metrics, _ = kte.evaluate_continuously(new_estimator(), spec, max_steps=4)
    assert metrics["global_step"] == 4


def test_profiles_need_local_directories():
    with pytest.raises(ValueError, match="Pass a local directory"):
        kte.hooks.ProfilerHook(10, output_dir=URL)


@pytest.mark.usefixtures("forked_programs")
def test_second_process_continues(shelf):
    """It has only the store, and its weights equal those of uninterrupted training."""
    script = second_process.__file__
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    second_process.estimator().train(second_process.repeated(X, Y), steps=4)
    done = subprocess.run(
        [sys.executable, script, "8"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    whole = second_process.estimator(shelf / "whole")
    whole.train(second_process.repeated(X, Y), steps=4)
    whole.train(second_process.repeated(X, Y), max_steps=8)

    here = second_process.estimator()
    assert here.latest_checkpoint() == "shelf://bucket/run/model.ckpt-8"
    for name in whole.get_variable_names():
        np.testing.assert_array_equal(
            here.get_variable_value(name), whole.get_variable_value(name)
        )
    told = json.loads(done.stdout)
    assert told["global_step"] == 8
    assert told["loss"] == here.evaluate(HELD_OUT)["loss"]
    assert saved("shelf://bucket/run") == [6, 8]
