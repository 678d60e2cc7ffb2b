"""Tests `train_and_evaluate` in one process, and the roles in TF_CONFIG."""

import json
import os
import signal

import numpy as np
import pytest
from helpers import batches_of, estimator_of, in_cluster, linear, model_fn_of, repeated
from training_helpers import DATA, HELD_OUT, TRAIN, Recorder, linear_estimator

import keras_tpu_estimator as kte
from keras_tpu_estimator.typing import Session
from keras_tpu_estimator.workflow.evaluations import Evaluations
from keras_tpu_estimator.workflow.train_and_evaluate import EvaluationListener


def eval_spec(recorder, **fields):
    return kte.EvalSpec(HELD_OUT, **{"steps": None, "exporters": recorder} | fields)


@pytest.mark.parametrize(
    ("throttle", "evaluated"),
    [
        ({"throttle_secs": 0}, [2, 4, 6, 7]),
        ({"throttle_secs": 600}, [2, 7]),
        ({}, [2, 7]),
        ({"throttle_steps": 1}, [2, 4, 6, 7]),
        ({"throttle_steps": 3}, [2, 6, 7]),
        ({"throttle_steps": 4}, [2, 6, 7]),
        ({"throttle_steps": 5}, [2, 7]),
        ({"throttle_steps": 4, "throttle_secs": 600}, [2, 6, 7]),
    ],
)
def test_steps_of_evaluated_checkpoints(throttle, evaluated, tmp_path):
    recorder = Recorder()
    kte.train_and_evaluate(
        linear_estimator(tmp_path),
        kte.TrainSpec(TRAIN, max_steps=7),
        eval_spec(recorder, **throttle),
    )
    assert recorder.steps == evaluated


def test_arguments_that_exporters_receive(tmp_path):
    recorder = Recorder("mine")
    metrics, exports = kte.train_and_evaluate(
        linear_estimator(tmp_path, save_every=4),
        kte.TrainSpec(TRAIN, max_steps=7),
        eval_spec(recorder, throttle_secs=0),
    )
    path = str(tmp_path / "export" / "mine")
    assert recorder.calls == [
        (4, path, str(tmp_path / "model.ckpt-4"), False),
        (7, path, str(tmp_path / "model.ckpt-7"), True),
    ]
    assert metrics["global_step"] == 7
    assert exports == ["export of 7"]


def test_no_export_is_final_without_max_steps(tmp_path):
    recorder = Recorder()
    metrics, _ = kte.train_and_evaluate(
        linear_estimator(tmp_path),
        kte.TrainSpec(batches_of(*DATA)),
        eval_spec(recorder),
    )
    assert recorder.steps == [2, 4]
    assert metrics["global_step"] == 4
    assert not any(is_final for *_, is_final in recorder.calls)


def test_fractions_of_steps_are_rounded_up_as_in_tensorflow(tmp_path):
    # TensorFlow 1.15.5 saves the same checkpoints, the last one at step 6.
    recorder = Recorder()
    metrics, _ = kte.train_and_evaluate(
        linear_estimator(tmp_path, save_every=2.5),
        kte.TrainSpec(TRAIN, max_steps=5.5),
        eval_spec(recorder, steps=0.5, throttle_secs=0),
    )
    assert recorder.steps == [3, 6]
    assert [is_final for *_, is_final in recorder.calls] == [False, True]
    assert metrics["global_step"] == 6


def test_fractions_of_steps_are_refused_with_a_tpu(tmp_path):
    estimator = linear_estimator(tmp_path, use_tpu=True)
    with pytest.raises(TypeError, match="`max_steps` must be an int"):
        kte.train_and_evaluate(
            estimator, kte.TrainSpec(TRAIN, max_steps=2.0), eval_spec(Recorder())
        )


@pytest.mark.parametrize("use_tpu", [False, True])
def test_results_match_evaluate(use_tpu, tmp_path):
    estimator = linear_estimator(tmp_path, use_tpu=use_tpu)
    metrics, exports = kte.train_and_evaluate(
        estimator,
        kte.TrainSpec(TRAIN, max_steps=6),
        kte.EvalSpec(HELD_OUT, steps=None),
    )
    result = estimator.evaluate(HELD_OUT)
    assert metrics.keys() == result.keys()
    assert metrics["loss"] == pytest.approx(result["loss"], rel=1e-6)
    assert exports == []


def test_spec_determines_steps_name_and_hooks(tmp_path):
    seen = []

    class Count(kte.hooks.SessionRunHook):
        def after_run(self, run_context, run_values):
            seen.append(int(run_context.session.run("global_step")))

    kte.train_and_evaluate(
        linear_estimator(tmp_path),
        kte.TrainSpec(TRAIN, max_steps=2),
        kte.EvalSpec(HELD_OUT, steps=1, name="held_out", hooks=[Count()]),
    )
    assert seen == [2]
    metrics = kte.experimental.read_eval_metrics(tmp_path / "eval_held_out")
    assert list(metrics) == [2]


def test_results_contain_the_checkpoint(tmp_path):
    from tensorboard.backend.event_processing import event_accumulator

    kte.train_and_evaluate(
        linear_estimator(tmp_path),
        kte.TrainSpec(TRAIN, max_steps=2),
        kte.EvalSpec(HELD_OUT),
    )
    events = event_accumulator.EventAccumulator(str(tmp_path / "eval"))
    (event,) = events.Reload().Tensors("checkpoint_path")
    (path,) = event.tensor_proto.string_val
    assert path.decode() == str(tmp_path / "model.ckpt-2")


def test_training_input_and_programs_are_kept(tmp_path):
    started, traced = [], []

    def input_fn(params):
        started.append(1)
        return repeated(*DATA)(params)

    def model_fn(features, labels, mode, params):
        traced.append(mode)
        return model_fn_of(linear)(features, labels, mode, params)

    estimator = estimator_of(
        model_fn,
        tmp_path,
        iterations=1,
        config={"save_checkpoints_steps": 2},
    )
    traces = []

    class CountTraces(Recorder):
        def export(self, **arguments):
            traces.append(len(traced))
            return super().export(**arguments)

    recorder = CountTraces()
    kte.train_and_evaluate(
        estimator,
        kte.TrainSpec(input_fn, max_steps=8),
        eval_spec(recorder, throttle_secs=0),
    )
    assert recorder.steps == [2, 4, 6, 8]
    assert len(started) == 1
    assert len(set(traces)) == 1
    assert len(traced) == traces[0]


def test_checkpoints_are_not_reread(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(
        "keras_tpu_estimator.files.formats.loading.read",
        lambda *arguments: read.append(arguments),
    )
    kte.train_and_evaluate(
        linear_estimator(tmp_path),
        kte.TrainSpec(TRAIN, max_steps=4),
        kte.EvalSpec(HELD_OUT, throttle_secs=0),
    )
    assert not read


def test_evaluation_does_not_change_training(tmp_path):
    plain = linear_estimator(tmp_path / "plain")
    plain.train(TRAIN, max_steps=8)
    evaluated = linear_estimator(tmp_path / "evaluated")
    kte.train_and_evaluate(
        evaluated,
        kte.TrainSpec(TRAIN, max_steps=8),
        kte.EvalSpec(HELD_OUT, throttle_secs=0),
    )
    np.testing.assert_array_equal(
        plain.get_variable_value("dense/kernel"),
        evaluated.get_variable_value("dense/kernel"),
    )


def test_several_evaluations_have_their_own_times_and_results(tmp_path):
    often, rarely = Recorder("often"), Recorder("rarely")
    metrics, exports = kte.train_and_evaluate(
        linear_estimator(tmp_path),
        kte.TrainSpec(TRAIN, max_steps=7),
        [
            eval_spec(often, name="test", throttle_secs=0),
            kte.EvalSpec(
                batches_of(*DATA),
                steps=1,
                name="train",
                exporters=[rarely],
                throttle_steps=4,
            ),
        ],
    )
    assert often.steps == [2, 4, 6, 7]
    assert rarely.steps == [2, 6, 7]
    assert list(metrics) == list(exports) == ["test", "train"]
    assert metrics["test"]["loss"] != metrics["train"]["loss"]
    assert exports == {"test": ["export of 7"], "train": ["export of 7"]}
    for name in ("test", "train"):
        written = kte.experimental.read_eval_metrics(tmp_path / f"eval_{name}")
        assert written[7]["loss"] == pytest.approx(metrics[name]["loss"])


def test_finished_training_evaluates_nothing(tmp_path):
    estimator = linear_estimator(tmp_path)
    estimator.train(TRAIN, max_steps=4)
    recorder = Recorder()
    result = kte.train_and_evaluate(
        estimator, kte.TrainSpec(TRAIN, max_steps=4), eval_spec(recorder)
    )
    assert result == (None, None)
    assert recorder.steps == []


def test_resumed_training_evaluates_its_first_checkpoint(tmp_path):
    linear_estimator(tmp_path).train(TRAIN, max_steps=4)
    recorder = Recorder()
    kte.train_and_evaluate(
        linear_estimator(tmp_path),
        kte.TrainSpec(TRAIN, max_steps=9),
        eval_spec(recorder),
    )
    assert recorder.steps == [6, 9]


def test_listeners_of_the_spec_run_first_and_may_stop(tmp_path):
    log = []

    class Stop(kte.hooks.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            log.append(("saved", global_step_value))
            return global_step_value == 4

    class Log(Recorder):
        def export(self, **arguments):
            log.append("evaluated")
            return super().export(**arguments)

    recorder = Log()
    kte.train_and_evaluate(
        linear_estimator(tmp_path),
        kte.TrainSpec(TRAIN, max_steps=100, saving_listeners=[Stop()]),
        eval_spec(recorder, throttle_secs=0),
    )
    assert log == [
        ("saved", 0),
        ("saved", 2),
        "evaluated",
        ("saved", 4),
        "evaluated",
    ]
    assert not recorder.calls[-1][-1]


def test_saver_in_another_directory_causes_no_evaluation(tmp_path, caplog):
    recorder = Recorder()
    saver = kte.hooks.CheckpointSaverHook(tmp_path / "other", save_steps=2)
    result = kte.train_and_evaluate(
        linear_estimator(tmp_path / "model"),
        kte.TrainSpec(TRAIN, max_steps=2, hooks=[saver]),
        eval_spec(recorder),
    )
    assert result == (None, None)
    assert "Step 2 is not evaluated, because it is not in" in caplog.text


def test_older_checkpoint_is_read_for_evaluation(tmp_path):
    class Ahead(Session):
        def saved_step(self, directory):
            return 2

    estimator = linear_estimator(tmp_path)
    evaluations = Evaluations(estimator, kte.EvalSpec(HELD_OUT, steps=None))
    listener = EvaluationListener(estimator, evaluations)
    listener.begin()
    estimator.train(TRAIN, max_steps=2)
    listener.after_save(Ahead({"global_step": 0}.get), 0)
    listener.after_save(Ahead({"global_step": 3}.get), 2)
    metrics, _ = evaluations.results()
    assert metrics == estimator.evaluate(HELD_OUT)


def test_no_evaluation_without_checkpoints(tmp_path):
    estimator = linear_estimator(tmp_path, save_every=None)
    with pytest.raises(ValueError, match="need checkpoints, but none are"):
        kte.train_and_evaluate(
            estimator,
            kte.TrainSpec(TRAIN, max_steps=2),
            kte.EvalSpec(HELD_OUT),
        )


def test_dry_run_takes_one_step_and_one_batch(tmp_path):
    recorder = Recorder()
    batches = []

    def input_fn(params):
        for batch in HELD_OUT(params):
            batches.append(batch)
            yield batch

    estimator = linear_estimator(tmp_path, config={"fast_dev_run": True})
    metrics, _ = kte.train_and_evaluate(
        estimator,
        kte.TrainSpec(TRAIN, max_steps=100),
        kte.EvalSpec(input_fn, exporters=recorder),
    )
    first = np.mean(batches[0][1] ** 2)
    assert recorder.steps == [1]
    assert metrics["loss"] < first * 2
    assert not os.listdir(tmp_path)


# Wrong arguments.


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (0, "`estimator` must be a TPUEstimator"),
        (1, "`train_spec` must be a TrainSpec"),
        (2, "`eval_spec` must be an EvalSpec or a list"),
    ],
)
@pytest.mark.parametrize("wrong", ["spec", None, 1])
def test_types_of_arguments_are_checked(position, message, wrong, tmp_path):
    arguments = [
        linear_estimator(tmp_path),
        kte.TrainSpec(TRAIN),
        kte.EvalSpec(HELD_OUT),
    ]
    arguments[position] = wrong
    with pytest.raises(TypeError, match=message):
        kte.train_and_evaluate(*arguments)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([], "Received an empty list"),
        (
            [kte.EvalSpec(HELD_OUT), kte.EvalSpec(HELD_OUT)],
            "must have different names",
        ),
        (
            [
                kte.EvalSpec(HELD_OUT, name="a", exporters=Recorder()),
                kte.EvalSpec(HELD_OUT, name="b", exporters=Recorder()),
            ],
            "Received twice: 'recorder'",
        ),
    ],
)
def test_several_evaluations_need_different_names(specs, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        kte.train_and_evaluate(linear_estimator(tmp_path), kte.TrainSpec(TRAIN), specs)


# Tests of the marker of completed training.


def test_training_is_marked_complete(tmp_path):
    marked = []

    class Look(kte.hooks.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            marked.append(
                (global_step_value, kte.checkpoints.training_is_complete(tmp_path))
            )

    estimator = linear_estimator(tmp_path)
    for max_steps in (4, 6, 6):
        kte.train_and_evaluate(
            estimator,
            kte.TrainSpec(TRAIN, max_steps, saving_listeners=[Look()]),
            kte.EvalSpec(HELD_OUT),
        )
        assert kte.checkpoints.training_is_complete(tmp_path)
    # The second call resumes from step 4.
    assert marked == [(step, False) for step in (0, 2, 4, 4, 6)]
    content = (tmp_path / "training_complete.json").read_text()
    assert json.loads(content) == {"global_step": 6}


def test_new_training_removes_the_marker(tmp_path):
    estimator = linear_estimator(tmp_path)
    kte.train_and_evaluate(estimator, kte.TrainSpec(TRAIN, 4), kte.EvalSpec(HELD_OUT))
    estimator.train(TRAIN, max_steps=4)
    assert kte.checkpoints.training_is_complete(tmp_path)
    estimator.train(TRAIN, steps=1)
    assert not kte.checkpoints.training_is_complete(tmp_path)


def test_training_that_fails_is_not_complete(tmp_path):
    def input_fn(params):
        yield from batches_of(*DATA)(params)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        kte.train_and_evaluate(
            linear_estimator(tmp_path),
            kte.TrainSpec(input_fn),
            kte.EvalSpec(HELD_OUT),
        )
    assert not kte.checkpoints.training_is_complete(tmp_path)


# Tests of the roles of several processes.


def part(monkeypatch, task_type, index=0, **cluster):
    """Sets TF_CONFIG."""
    cluster = cluster or {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    task = {"type": task_type, "index": index}
    in_cluster(monkeypatch, {"cluster": cluster, "task": task})


@pytest.mark.parametrize(
    ("task_type", "cluster", "evaluated", "marks"),
    [
        ("chief", {"chief": ["a:1"]}, [], True),
        ("master", {"master": ["a:1"]}, [2, 4], True),
        ("worker", {"chief": ["a:1"], "worker": ["b:1"]}, [], False),
    ],
)
def test_roles_of_processes(
    task_type, cluster, evaluated, marks, tmp_path, monkeypatch
):
    part(monkeypatch, task_type, **cluster)
    recorder = Recorder()
    estimator = linear_estimator(tmp_path)
    metrics, _ = kte.train_and_evaluate(
        estimator,
        kte.TrainSpec(TRAIN, max_steps=4),
        eval_spec(recorder, throttle_secs=0),
    )
    assert recorder.steps == evaluated
    assert (metrics is not None) == bool(evaluated)
    assert kte.checkpoints.training_is_complete(tmp_path) == marks


def test_evaluator_evaluates_checkpoints_of_the_chief(tmp_path, monkeypatch):
    linear_estimator(tmp_path).train(TRAIN, max_steps=4)
    part(monkeypatch, "evaluator")
    recorder = Recorder()
    metrics, exports = kte.train_and_evaluate(
        linear_estimator(tmp_path),
        kte.TrainSpec(TRAIN, max_steps=4),
        iter([eval_spec(recorder, name="beside")]),
    )
    assert metrics["beside"]["global_step"] == 4
    assert exports == {"beside": ["export of 4"]}
    assert recorder.calls[0][-1]


@pytest.mark.parametrize(
    ("task_type", "index", "message"),
    [
        ("ps", 0, "must have no parameter servers"),
        ("evaluator", 1, "one evaluator, with index 0"),
    ],
)
def test_unknown_roles_are_refused(task_type, index, message, tmp_path, monkeypatch):
    part(monkeypatch, task_type, index)
    with pytest.raises(ValueError, match=message):
        kte.train_and_evaluate(
            linear_estimator(tmp_path),
            kte.TrainSpec(TRAIN, max_steps=4),
            kte.EvalSpec(HELD_OUT),
        )


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"type": "local", "index": 0}, "'local'"),
        ({"type": "gardener", "index": 0}, "'gardener'"),
        ({"index": 0}, "must have a type and an index"),
        ({"type": "", "index": 0}, "must have a type and an index"),
    ],
)
def test_missing_tasks_are_refused(task, message, tmp_path, monkeypatch):
    cluster = {"chief": ["a:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    with pytest.raises(ValueError, match=message):
        linear_estimator(tmp_path)


def test_process_does_not_evaluate_after_a_stop_signal(tmp_path):
    class StopAtStep(kte.hooks.SessionRunHook):
        def before_run(self, run_context):
            if run_context.session.run("global_step") == 3:
                signal.raise_signal(signal.SIGTERM)

    recorder = Recorder()
    estimator = linear_estimator(tmp_path)
    with pytest.raises(SystemExit):
        kte.train_and_evaluate(
            estimator,
            kte.TrainSpec(TRAIN, max_steps=100, hooks=[StopAtStep()]),
            eval_spec(recorder, throttle_secs=0),
        )
    assert estimator.get_variable_value("global_step") == 4
    assert recorder.steps == [2]
    assert not kte.checkpoints.training_is_complete(tmp_path)
