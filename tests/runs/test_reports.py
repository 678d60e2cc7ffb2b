"""Tests of logged metrics, and of the report about a NaN."""

import dataclasses
import json
import logging
import re

import keras
import numpy as np
import pytest
from helpers import (
    batches_of,
    each_once,
    estimator_of,
    model_fn_of,
    regression_data,
    repeated,
)

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.hooks.summary_saver import TrainingLogHook
from keras_tpu_estimator.engine.inputs.pipeline import Infeed
from keras_tpu_estimator.files.summary.metric_writer import SeveralWriters
from keras_tpu_estimator.files.summary.metric_writers import JsonLines
from keras_tpu_estimator.runs import training_hooks

X, Y = regression_data(examples=64)


def linear(features, is_training):
    return keras.layers.Dense(1, use_bias=False, name="dense")(features)


def reporting(model_fn, model_dir, use_tpu=False, every=4, **run_config):
    """An estimator that logs metrics, and the tools to read them."""
    config = kte.RunConfig(
        model_dir=str(model_dir),
        tpu_config=kte.TPUConfig(iterations_per_loop=4),
        log_step_count_steps=every,
        tf_random_seed=7,
        **run_config,
    )
    return kte.TPUEstimator(
        model_fn, config=config, use_tpu=use_tpu, train_batch_size=16
    )


def lines(model_dir):
    """The lines of `metrics.jsonl`, without those with the times of calls."""
    text = (model_dir / "metrics.jsonl").read_text()
    reports = [json.loads(line) for line in text.splitlines()]
    return [report for report in reports if "time/steps" not in report]


def events(model_dir, tag):
    from tensorboard.backend.event_processing import event_accumulator

    reader = event_accumulator.EventAccumulator(str(model_dir)).Reload()
    return {each.step: each.value for each in reader.Scalars(tag)}


def with_metrics(features, labels, mode, params):
    """A linear model with a schedule and training metrics."""
    outputs = linear(features, True)
    loss = keras.ops.mean((outputs - labels) ** 2)
    schedule = keras.optimizers.schedules.PolynomialDecay(0.1, 10, 0.0)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(schedule))

    def metric_fn(labels, seen):
        return {
            "labels": kte.metrics.mean(labels),
            "seen": kte.metrics.mean(seen),
        }

    ones = keras.ops.ones_like(labels)
    return kte.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss),
        train_metrics=(metric_fn, [labels, ones]),
    )


@pytest.mark.parametrize("use_tpu", [False, True])
def test_logs_and_summaries_have_all_metrics(tmp_path, caplog, use_tpu):
    estimator = reporting(with_metrics, tmp_path, use_tpu)
    with caplog.at_level(logging.INFO, "keras_tpu_estimator"):
        estimator.train(repeated(X, Y), steps=8)
    reports = lines(tmp_path)
    assert [report["step"] for report in reports] == [4, 8]
    assert reports[0].pop("start") == 1
    assert set(reports[0]) == {
        "step",
        "time",
        "loss",
        "learning_rate",
        "input_wait",
        "labels",
        "seen",
        "global_step/sec",
        "examples/sec",
    }
    rates = [report["learning_rate"] for report in reports]
    # The rate of a loop's last step: steps are counted from 0.
    np.testing.assert_allclose(rates, [0.1 * 0.7, 0.1 * 0.3], rtol=1e-5)
    for report in reports:
        np.testing.assert_allclose(report["labels"], Y.mean(), rtol=1e-5)
        assert report["seen"] == 1.0
        assert 0 <= report["input_wait"] <= 1
        per_step = report["examples/sec"] / report["global_step/sec"]
        np.testing.assert_allclose(per_step, 16)
    for tag in ("learning_rate", "labels", "input_wait", "examples/sec"):
        written = events(tmp_path, tag)
        assert list(written) == [4, 8]
        np.testing.assert_allclose(
            list(written.values()), [r[tag] for r in reports], rtol=1e-6
        )
    assert re.search(
        r"loss = [\d.]+, step = 4, learning_rate = 0.07, input_wait = [\d.e-]+,"
        r" labels = ",
        caplog.text,
    )


OWN_FIELDS = (
    "loss",
    "global_step",
    "step",
    "time",
    "learning_rate",
    "learning_rate/sgd",
    "input_wait",
    "global_step/sec",
    "examples/sec",
)


@pytest.mark.parametrize(
    ("name", "is_traceable"), each_once([*OWN_FIELDS], [True, False])
)
def test_metrics_with_reserved_names_are_refused(tmp_path, name, is_traceable):
    def metric_fn(labels):
        if not is_traceable:
            labels = np.asarray(labels)
        return {name: kte.metrics.mean(labels)}

    def model_fn(features, labels, mode, params):
        spec = with_metrics(features, labels, mode, params)
        return dataclasses.replace(spec, train_metrics=(metric_fn, [labels]))

    with pytest.raises(
        ValueError,
        match=(
            f"cannot be named '{name}', because a report of training has .*"
            "'input_wait'.* Give the metric another name"
        ),
    ):
        reporting(model_fn, tmp_path).train(repeated(X, Y), steps=4)


def test_evaluation_metrics_may_use_reserved_names(tmp_path):
    def metric_fn(labels):
        return {"time": kte.metrics.mean(labels)}

    def model_fn(features, labels, mode, params):
        loss = keras.ops.mean((linear(features, True) - labels) ** 2)
        return kte.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metric_fn, [labels]))

    estimator = estimator_of(model_fn, tmp_path)
    result = estimator.evaluate(batches_of(X, Y))
    np.testing.assert_allclose(result["time"], Y.mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([1], [1]),  # Shorter than an interval.
        ([3], [3]),
        ([4], [4]),  # No value is missing or repeated.
        ([10], [4, 8, 10]),
        ([2, 1, 5], [2, 3, 7, 8]),
    ],
)
def test_remaining_steps_are_reported_at_the_end(tmp_path, calls, expected):
    for steps in calls:
        reporting(with_metrics, tmp_path).train(repeated(X, Y), steps=steps)
    reports = lines(tmp_path)
    assert [report["step"] for report in reports] == expected
    assert {report["seen"] for report in reports} == {1.0}
    for tag in ("labels", "global_step/sec"):
        assert list(events(tmp_path, tag)) == expected


def test_last_rate_excludes_work_after_training(tmp_path):
    steps = []

    class Look(kte.hooks.SessionRunHook):
        def end(self, session):
            steps.extend(report["step"] for report in lines(tmp_path))

    estimator = reporting(with_metrics, tmp_path)
    estimator.train(repeated(X, Y), hooks=[Look()], steps=2)
    assert steps == [2]


def test_training_without_a_step_reports_nothing(tmp_path):
    reporting(with_metrics, tmp_path).train(lambda params: iter(()))
    assert not (tmp_path / "metrics.jsonl").exists()


def test_last_report_covers_the_remaining_steps(tmp_path):
    def input_fn(params):
        for number in range(6):
            yield X[:16], np.full((16, 1), number, "float32")

    reporting(with_metrics, tmp_path).train(input_fn)
    means = [report["labels"] for report in lines(tmp_path)]
    np.testing.assert_allclose(means, [1.5, 4.5])


def test_metrics_cover_the_steps_since_the_last_report(tmp_path):
    def input_fn(params):
        for number in range(8):
            yield X[:16], np.full((16, 1), number, "float32")

    reporting(with_metrics, tmp_path).train(input_fn)
    means = [report["labels"] for report in lines(tmp_path)]
    np.testing.assert_allclose(means, [np.mean([0, 1, 2, 3]), 5.5])


def test_rates_of_several_optimizers_have_different_names(tmp_path):
    def model_fn(features, labels, mode, params):
        layers = [keras.layers.Dense(1, name=name) for name in ("a", "b")]
        loss = keras.ops.mean((sum(layer(features) for layer in layers) - labels) ** 2)
        ops = [
            kte.CrossShardOptimizer(
                keras.optimizers.SGD(rate, name=f"sgd_{layer.name}")
            ).minimize(loss, var_list=layer.trainable_variables)
            for layer, rate in zip(layers, (0.1, 0.2), strict=True)
        ]
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=ops)

    reporting(model_fn, tmp_path).train(repeated(X, Y), steps=4)
    (report,) = lines(tmp_path)
    assert report["learning_rate/sgd_a"] == pytest.approx(0.1)
    assert report["learning_rate/sgd_b"] == pytest.approx(0.2)


class Clock(kte.hooks.SessionRunHook):
    """A clock that advances by four seconds before each run."""

    now = 0.0

    def before_run(self, run_context):
        self.now += 4.0

    def monotonic(self):
        return self.now


def test_time_spent_waiting_for_input_is_reported(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(training_hooks, "time", clock)
    monkeypatch.setattr(Infeed, "take_waited_secs", lambda infeed: 3.0)
    estimator = reporting(model_fn_of(linear), tmp_path)
    estimator.train(repeated(X, Y), [clock], steps=8)
    assert [line["input_wait"] for line in lines(tmp_path)] == [0.75, 0.75]


def test_nothing_is_written_without_summaries(tmp_path):
    estimator = reporting(model_fn_of(linear), tmp_path, save_summary_steps=None)
    estimator.train(repeated(X, Y), steps=4)
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize("progress", [True, False, "auto"])
def test_progress_line_is_shown_if_enabled(tmp_path, capsys, progress):
    keras.config.enable_interactive_logging()
    estimator = reporting(model_fn_of(linear), tmp_path, progress=progress)
    estimator.train(repeated(X, Y), steps=8)
    printed = capsys.readouterr().out
    if progress is True:
        assert "4/8" in printed and "8/8" in printed
        assert "loss: " in printed
    else:
        assert not printed


def test_training_without_a_limit_has_a_progress_line(tmp_path, capsys):
    estimator = reporting(model_fn_of(linear), tmp_path, progress=True)
    estimator.train(batches_of(X, Y))
    assert "4/Unknown" in capsys.readouterr().out


def logarithm(features, is_training):
    outputs = keras.layers.Dense(
        1, use_bias=False, kernel_initializer="ones", name="dense"
    )(features)
    return keras.ops.log(outputs)  # The report must name this line.


def positive_but(step):
    """Batches of ones, except for one step with negative numbers."""

    def input_fn(params):
        for number in range(1, 9):
            sign = -1 if number == step else 1
            yield sign * np.ones((16, 3), "float32"), Y[:16]

    return input_fn


@pytest.mark.parametrize("use_tpu", [False, True])
def test_nan_is_reported_with_its_step_and_variable(tmp_path, use_tpu):
    estimator = estimator_of(model_fn_of(logarithm), tmp_path, use_tpu)
    with pytest.raises(
        kte.hooks.NanLossDuringTrainingError,
        match=(
            "ended at step 8.*NaN since step 6.*first variable that is not "
            "finite is 'dense/kernel'.*debug_nans=True"
        ),
    ):
        estimator.train(positive_but(6), steps=8)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_debugging_finds_the_operation(tmp_path, use_tpu):
    estimator = estimator_of(
        model_fn_of(logarithm), tmp_path, use_tpu, config={"debug_nans": True}
    )
    with pytest.raises(
        FloatingPointError,
        match=r"primitive: log.*test_reports.py:\d+, in logarithm",
    ):
        estimator.train(positive_but(6), steps=8)


def test_debugging_does_not_change_results(tmp_path):
    kernels = []
    for debug_nans in (False, True):
        estimator = estimator_of(
            model_fn_of(linear),
            tmp_path / str(debug_nans),
            config={"debug_nans": debug_nans},
        )
        estimator.train(repeated(X, Y), steps=5)
        kernels.append(estimator.get_variable_value("dense/kernel"))
    np.testing.assert_allclose(*kernels, rtol=1e-6)


@pytest.mark.parametrize(("field", "value"), [("progress", "yes"), ("debug_nans", 1)])
def test_wrong_settings(field, value):
    with pytest.raises(ValueError, match=f"`{field}` must be"):
        kte.RunConfig(**{field: value})


def test_notebook_shows_only_some_reports(tmp_path, caplog):
    caplog.set_level(logging.INFO, "keras_tpu_estimator")
    clock = iter([0.0, 0.4, 0.9, 1.1, 1.5])
    hook = TrainingLogHook(
        batch_size=16,
        report=lambda results: {"input_wait": 0.25},
        writer=SeveralWriters([JsonLines(str(tmp_path))]),
        is_brief=True,
        clock=lambda: next(clock),
        every_n_steps=4,
    )
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(repeated(X, Y), [hook], steps=20)
    told = [each for each in caplog.messages if each.startswith("loss = ")]
    # One report per second, and the last one.
    assert [re.search(r"step = (\d+)", line)[1] for line in told] == [
        *("4", "16", "20")
    ]
    assert all(
        re.fullmatch(
            r"loss = \S+, step = \d+, input_wait = 0.25, "
            r"global_step/sec = \S+, examples/sec = \S+",
            line,
        )
        for line in told
    )
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [4, 8, 12, 16, 20]


def test_obsolete_steps_are_marked(tmp_path):
    def train(steps):
        made = reporting(with_metrics, tmp_path, save_summary_steps=4)
        made.train(repeated(X, Y), steps=steps)

    train(4)
    train(8)
    # The next call continues at step 4.
    state = 'model_checkpoint_path: "model.ckpt-4"\n'
    (tmp_path / "checkpoint").write_text(state)
    train(4)
    assert [(e["step"], e.get("start")) for e in lines(tmp_path)] == [
        (4, 1),
        (8, 5),
        (12, None),
        (8, 5),
    ]
    # TensorBoard discards the obsolete step 12.
    assert [*events(tmp_path, "input_wait")] == [4, 8]
