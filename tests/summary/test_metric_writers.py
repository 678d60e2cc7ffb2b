"""Tests the values that metric writers receive in training and evaluation."""

import copy
import json
import logging
import pickle
import sys
import types

import numpy as np
import pytest
from helpers import (
    batches_of,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    repeated,
)

import keras_tpu_estimator as kte
from keras_tpu_estimator import summary
from keras_tpu_estimator.files.summary import metric_writers
from keras_tpu_estimator.files.summary.event_file import read_scalars

X, Y = regression_data()


def recording(features, is_training):
    """A network that records a summary of each kind."""
    outputs = linear(features, is_training)
    summary.scalar("largest", outputs.max())
    summary.histogram("rows", features, buckets=4)
    summary.image("view", features[:, None, :, None])
    summary.text("about", ["one", "two"])
    return outputs


def run(directory, writers, name=None, use_tpu=False, **settings):
    """Trains eight steps in two loops, and evaluates."""
    estimator = estimator_of(
        model_fn_of(recording),
        directory,
        use_tpu,
        save_summary_steps=settings.pop("save_summary_steps", 8),
        log_step_count_steps=4,
        config={"metric_writers": writers, **settings},
    )
    estimator.train(repeated(X, Y), steps=8)
    return estimator, estimator.evaluate(batches_of(X, Y), name=name)


class Own(summary.MetricWriter):
    """Records everything that it receives."""

    def __init__(self):
        self.calls = []
        self.flushed = 0

    def write_scalars(self, step, scalars):
        assert all(type(value) is float for value in scalars.values())
        self.calls.append((step, dict(scalars)))

    def write_images(self, step, images):
        self.calls.append((step, {n: i.shape for n, i in images.items()}))

    def write_texts(self, step, texts):
        self.calls.append((step, dict(texts)))

    def write_bucket_counts(self, step, counts):
        for counted, edges in counts.values():
            assert len(edges) == len(counted) + 1 == 5
        self.calls.append((step, {n: c[0].sum() for n, c in counts.items()}))

    def flush(self):
        self.flushed += 1

    def named(self, name):
        return {step: got[name] for step, got in self.calls if name in got}


class OfClu:
    """Has the methods of clu's writers without our base class."""

    def __init__(self):
        self.scalars = []

    def write_scalars(self, step, scalars):
        self.scalars.append((step, sorted(scalars)))


@pytest.mark.parametrize("use_tpu", [False, True])
def test_custom_writer(tmp_path, use_tpu):
    own = Own()
    estimator, result = run(tmp_path, [own], use_tpu=use_tpu)
    lines = [got for _, got in own.calls if "input_wait" in got]
    assert [*own.named("input_wait")] == [4, 8]
    assert lines[0].keys() == {
        *("loss", "learning_rate", "input_wait"),
        *("global_step/sec", "examples/sec"),
    }
    assert [*own.named("largest")] == [4]
    assert own.named("view") == {4: (3, 1, 3, 1)}
    assert own.named("rows") == {4: 16 * 3}
    assert own.named("about") == {4: "one\n\ntwo"}
    assert own.named("eval/loss") == {8: pytest.approx(float(result["loss"]))}
    assert own.named("eval/view") == {8: (3, 1, 3, 1)}
    assert own.flushed
    # No other files are written.
    assert not list(tmp_path.glob("**/events.*"))
    assert not list(tmp_path.glob("**/metrics.jsonl"))
    # Copies of a configuration share the writer.
    assert estimator.config.metric_writers[0] is own
    assert copy.deepcopy(estimator).config.metric_writers[0] is own


def test_names_of_evaluations(tmp_path):
    own = Own()
    run(tmp_path, own, name="test")
    assert [*own.named("eval_test/loss")] == [8]


def test_methods_of_clu_are_enough(tmp_path):
    writer = OfClu()
    run(tmp_path, [writer, "jsonl"])
    steps = [step for step, names in writer.scalars if "loss" in names]
    assert steps == [4, 8]
    assert [step for step, names in writer.scalars if "time/steps" in names] == [8]
    assert (8, ["eval/loss"]) in writer.scalars
    assert (tmp_path / "metrics.jsonl").exists()


def test_results_are_also_written_as_json_lines(tmp_path):
    _, result = run(tmp_path, ["tensorboard", "jsonl"])
    (line,) = (tmp_path / "eval" / "metrics.jsonl").read_text().splitlines()
    line = json.loads(line)
    assert line["step"] == 8
    assert line["loss"] == pytest.approx(float(result["loss"]))
    assert list((tmp_path / "eval").glob("events.*"))


def steps_in(directory):
    """The steps of the JSON lines and of the events in a directory."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    events = read_scalars(sorted(directory.glob("events.*")))
    return [json.loads(line)["step"] for line in lines], [*events]


def test_given_directory_replaces_those_of_the_run(tmp_path):
    run_dir, own = tmp_path / "run", tmp_path / "own"
    writers = [summary.JsonLines(str(own)), summary.TensorBoard(own)]
    run(run_dir, writers, name="test")
    assert steps_in(own) == ([4, 8, 8], [4, 8])
    assert steps_in(own / "eval_test") == ([8], [8])
    assert not list(run_dir.glob("**/metrics.jsonl"))
    assert not list(run_dir.glob("**/events.*"))


def test_estimators_share_a_given_directory(tmp_path):
    writers = [summary.JsonLines(tmp_path / "own")]
    for name in ("first", "second"):
        run(tmp_path / name, writers)
    for folder, steps in (("own", [4, 8, 8, 4, 8, 8]), ("own/eval", [8, 8])):
        lines = (tmp_path / folder / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == steps


def test_event_writer_outside_a_run_needs_a_directory():
    with pytest.raises(RuntimeError, match="`directory` must be set.*Received: ''"):
        summary.TensorBoard().write_scalars(1, {"loss": 0.5})


def test_writers_receive_nothing_without_summaries(tmp_path):
    own = Own()
    run(tmp_path, own, save_summary_steps=None)
    assert {name for _, got in own.calls for name in got} == {"eval/loss"}


def test_dry_run_does_not_call_writers(tmp_path):
    own = Own()
    run(tmp_path, own, fast_dev_run=True)
    assert not own.calls


def test_summaries_of_a_host_call(tmp_path):
    def model_fn(features, labels, mode, params):
        spec = model_fn_of(linear)(features, labels, mode, params)
        if mode == kte.ModeKeys.PREDICT:
            return spec
        return spec._replace(host_call=(write, [spec.loss[None]]))

    def write(loss):
        summary.scalar("of_host", loss.mean())

    own = Own()
    estimator = estimator_of(
        model_fn, tmp_path, save_summary_steps=4, config={"metric_writers": own}
    )
    estimator.train(repeated(X, Y), steps=8)
    assert [*own.named("of_host")] == [1, 5]
    estimator.evaluate(batches_of(X, Y))
    assert [*own.named("eval/of_host")] == [8]


@pytest.mark.parametrize(
    ("writers", "exception", "message"),
    [
        ("tensorbord", ValueError, "Did you mean 'tensorboard'"),
        (["jsonl", 3], TypeError, "`write_scalars.*Received: 3 of type int"),
        (None, TypeError, "Received: None"),
        ([Own], TypeError, r"Received: <class"),
    ],
)
def test_invalid_writers_are_refused(writers, exception, message):
    with pytest.raises(exception, match=message):
        kte.RunConfig(metric_writers=writers)


def test_writer_must_define_write_methods():
    with pytest.raises(NotImplementedError, match="MetricWriter must have"):
        summary.MetricWriter().write_scalars(1, {})


class FakeRun:
    """A run of Weights & Biases."""

    def __init__(self):
        self.metrics, self.logged = [], []

    def define_metric(self, name, step_metric=None):
        self.metrics.append((name, step_metric))

    def log(self, values):
        self.logged.append(values)


@pytest.fixture
def wandb(monkeypatch):
    """The functions of wandb that are used, according to its documentation."""
    fake = types.ModuleType("wandb")
    fake.run, fake.settings = None, []

    def init(**settings):
        fake.settings.append(settings)
        fake.run = FakeRun()
        return fake.run

    fake.init = init
    for name in ("Image", "Html", "Histogram"):
        setattr(fake, name, lambda *args, _n=name, **kwargs: _n)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_weights_and_biases(tmp_path, wandb):
    run(tmp_path, [summary.Wandb(project="digits"), "jsonl"])
    assert wandb.settings == [{"project": "digits"}]
    # Once for the run, independently of later logs.
    assert wandb.run.metrics == [
        ("global_step", None),
        ("*", "global_step"),
    ]
    by_name = {
        name: (values["global_step"], value)
        for values in wandb.run.logged
        for name, value in values.items()
    }
    assert by_name["loss"][0] == by_name["eval/loss"][0] == 8
    assert by_name["view"] == (4, ["Image"] * 3)
    assert by_name["rows"] == (4, "Histogram")
    assert by_name["about"] == (4, "Html")


def test_writer_is_pickled_without_its_run(tmp_path, wandb):
    writer = summary.Wandb(project="digits")
    writer.write_scalars(1, {"loss": 0.5})
    wandb.run.cannot = lambda: None  # Pickle does not support this object.
    pickle.loads(pickle.dumps(writer)).write_scalars(2, {"loss": 0.25})
    assert [values["loss"] for values in wandb.run.logged] == [0.5, 0.25]


def test_existing_run_is_used(tmp_path, wandb):
    started = wandb.run = FakeRun()
    run(tmp_path, "wandb")
    assert not wandb.settings and started.logged
    # Another run also receives steps.
    wandb.run = FakeRun()
    run(tmp_path / "again", "wandb")
    assert wandb.run.metrics == started.metrics


@pytest.fixture
def mlflow(monkeypatch):
    fake = types.ModuleType("mlflow")
    fake.metrics, fake.images = [], []

    def log_metrics(metrics, step=None):
        fake.metrics.append((step, metrics))

    def log_image(image, key=None, step=None):
        fake.images.append((step, key, np.shape(image)))

    fake.log_metrics, fake.log_image = log_metrics, log_image
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return fake


def test_mlflow(tmp_path, mlflow):
    run(tmp_path, ["mlflow"])
    found = {name: step for step, got in mlflow.metrics for name in got}
    assert found["loss"] == found["eval/loss"] == 8
    assert found["largest"] == 4
    assert (4, "view/0", (1, 3)) in mlflow.images


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_chosen_packages_must_be_installed(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"pip install {name}"):
        run(tmp_path, [name])


@pytest.mark.parametrize(
    ("setting", "writers", "is_told"),
    [
        ({"disable": False}, "jsonl", True),
        ({"disable": False}, ["jsonl", "mlflow"], False),
        ({"disable": True}, "jsonl", False),
        (None, "jsonl", False),
    ],
)
def test_autologging_without_effect_warns(
    tmp_path, monkeypatch, caplog, mlflow, setting, writers, is_told
):
    integrations = {} if setting is None else {"keras": setting}
    monkeypatch.setitem(
        sys.modules,
        "mlflow.utils.autologging_utils",
        types.SimpleNamespace(AUTOLOGGING_INTEGRATIONS=integrations),
    )
    caplog.set_level(logging.WARNING, "keras_tpu_estimator")
    run(tmp_path, writers)
    told = [m for m in caplog.messages if "autologging does not log" in m]
    assert len(told) == is_told
    assert all('metric_writers=["tensorboard"' in each for each in told)


def test_packages_are_imported_only_if_chosen(tmp_path):
    run(tmp_path, ["tensorboard", "jsonl"])
    assert not {"wandb", "mlflow"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("variable", "fields"),
    [(None, {"start": 5}), ("0", {"start": 5}), ("2", {"start": 5, "restarts": 2})],
)
def test_json_lines_count_restarts(variable, fields, tmp_path, monkeypatch):
    monkeypatch.setenv("KTE_RESTARTS", variable or "")
    writer = summary.JsonLines(tmp_path)
    writer.write_start(5)
    writer.write_scalars(6, {"loss": 0.5})
    writer.write_scalars(8, {"loss": 0.25})
    text = (tmp_path / "metrics.jsonl").read_text()
    first, second = (json.loads(line) for line in text.splitlines())
    del first["time"], second["time"]
    assert first == {"step": 6, "loss": 0.5} | fields
    assert second == {"step": 8, "loss": 0.25}


@pytest.mark.parametrize("omits_events", [False, True])
def test_event_files_may_omit_times(omits_events, tmp_path):
    writers = metric_writers.opened(["tensorboard", "jsonl"], str(tmp_path), "")
    writers.write_report(4, {"loss": 0.5, "input_wait": 0.25})
    writers.write_times(4, {"time/steps": 2.0}, omits_events)
    writers.flush()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    # The last line also has the last metrics.
    assert last == {
        **{"step": 4, "time": last["time"], "loss": 0.5},
        **{"input_wait": 0.25, "time/steps": 2.0},
    }
    written = read_scalars(sorted(tmp_path.glob("events.*")))[4]
    assert ("time/steps" in written) == (not omits_events)
