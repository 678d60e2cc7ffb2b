"""Tests the event files that calls of an estimator write and close."""

import gc
import glob
import os

import keras
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
from keras_tpu_estimator.files.summary import event_file
from keras_tpu_estimator.files.summary.event_file import read_scalars
from keras_tpu_estimator.summary import EventWriter

X, Y = regression_data()
TRAIN = repeated(X, Y)
EVAL = batches_of(X, Y)


def scalars(directory):
    """The content that other readers can see now, and the number of files."""
    files = glob.glob(os.path.join(directory, "*.tfevents.*"))
    tags = {}
    for step, values in read_scalars(files).items():
        for tag in values:
            tags.setdefault(tag, []).append(step)
    return tags, len(files)


def open_files(directory):
    """The files below a directory that this process has open."""
    own = "/proc/self/fd"
    found = []
    for descriptor in os.listdir(own):
        try:
            found.append(os.readlink(os.path.join(own, descriptor)))
        except FileNotFoundError:  # The file of the listing itself.
            continue
    return [path for path in found if path.startswith(str(directory))]


@pytest.fixture
def estimator(tmp_path):
    return estimator_of(model_fn_of(linear), tmp_path / "run", save_summary_steps=1)


@pytest.fixture
def own(tmp_path):
    """A directory for the event files of a hook or a user's writer."""
    return str(tmp_path / "own")


def test_no_file_stays_open(tmp_path, estimator):
    for _ in range(2):
        estimator.train(TRAIN, steps=8)
        estimator.evaluate(EVAL)
        estimator.evaluate(EVAL, name="again")
        list(estimator.predict(batches_of(X)))
    assert open_files(tmp_path) == []
    assert scalars(tmp_path / "run") == ({"loss": [4, 8, 12, 16]}, 1)
    assert scalars(tmp_path / "run" / "eval") == ({"loss": [8, 16]}, 1)


def test_flush_does_not_reopen_a_closed_file(tmp_path):
    writer = EventWriter(tmp_path)
    writer.scalars({"loss": 0.5}, step=1)
    assert open_files(tmp_path) == []
    writer.flush()
    assert open_files(tmp_path) == []
    writer.close()


def step_counter(**where):
    return kte.hooks.StepCounterHook(every_n_steps=1, **where), [8, 12]


def step_counter_by_time(**where):
    hook = kte.hooks.StepCounterHook(every_n_steps=None, every_n_secs=0, **where)
    return hook, [8, 12]


def summary_saver(**where):
    return kte.hooks.SummarySaverHook(save_steps=5, **where), [4, 12]


HOOKS = pytest.mark.parametrize(
    "made", [step_counter, step_counter_by_time, summary_saver]
)


@HOOKS
@pytest.mark.parametrize("is_of_spec", [False, True])
def test_summaries_of_a_hook_are_readable_when_train_returns(
    made, is_of_spec, tmp_path, own
):
    hook, steps = made(output_dir=own)
    base = model_fn_of(linear)

    def model_fn(features, labels, mode, params):
        spec = base(features, labels, mode, params)
        return spec._replace(training_hooks=[hook])

    estimator = estimator_of(model_fn if is_of_spec else base, tmp_path / "run")
    estimator.train(TRAIN, hooks=None if is_of_spec else [hook], steps=12)
    assert list(scalars(own)[0].values()) == [steps]


@HOOKS
def test_summaries_of_a_hooks_own_writer_are_readable(made, estimator, own):
    writer = EventWriter(own, flush_secs=1000)
    hook, steps = made(summary_writer=writer)
    estimator.train(TRAIN, hooks=[hook], steps=12)
    assert list(scalars(own)[0].values()) == [steps]
    writer.close()


@HOOKS
def test_summaries_of_a_hook_are_readable_after_an_error(made, estimator, own):
    class Fail(kte.hooks.SessionRunHook):
        def end(self, session):
            raise KeyError("mine")

    hook, steps = made(output_dir=own)
    with pytest.raises(KeyError, match="mine"):
        estimator.train(TRAIN, hooks=[Fail(), hook], steps=12)
    assert list(scalars(own)[0].values()) == [steps]


class WriteOnce(kte.hooks.SessionRunHook):
    """Writes into the shared file of a directory without flushing."""

    def __init__(self, directory, error=None):
        self.events = EventWriter.for_dir(directory)
        self.error = error

    def after_create_session(self, session, coord):
        self.events.scalars({"mine": 0.5}, step=1)

    def after_run(self, run_context, run_values):
        if self.error:
            raise self.error


@pytest.mark.parametrize("error", [None, KeyError("mine")])
def test_summaries_of_an_evaluation_hook_are_readable(error, estimator, own):
    try:
        estimator.evaluate(EVAL, hooks=[WriteOnce(own, error)])
    except KeyError as raised:
        assert raised is error
    assert scalars(own) == ({"mine": [1]}, 1)


@pytest.mark.parametrize("read", [list, next])
def test_summaries_of_a_prediction_hook_are_readable(read, estimator, own):
    predictions = estimator.predict(batches_of(X), hooks=[WriteOnce(own)])
    read(predictions)
    predictions.close()
    assert scalars(own) == ({"mine": [1]}, 1)


def test_summaries_of_a_hook_are_readable_when_fit_returns(own):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    hook = kte.hooks.SummarySaverHook(save_steps=1, output_dir=own)
    callback = kte.hooks.as_callback(hook)
    model.fit(X, Y, batch_size=32, verbose=0, callbacks=[callback])
    assert scalars(own) == ({"loss": [1, 2]}, 1)


def writing_model_fn(write):
    """A model_fn that calls a function with the loss on the host."""
    base = model_fn_of(linear)

    def model_fn(features, labels, mode, params):
        spec = base(features, labels, mode, params)
        if mode == kte.ModeKeys.PREDICT:
            return spec
        return kte.TPUEstimatorSpec(
            mode,
            loss=spec.loss,
            train_op=spec.train_op,
            host_call=(write, [keras.ops.reshape(spec.loss, [1])]),
        )

    return model_fn


def values_of(directory):
    from tensorboard.backend.event_processing import event_accumulator

    events = event_accumulator.EventAccumulator(str(directory)).Reload()
    return {
        tag: [event.step for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


def test_summaries_of_a_host_call_are_readable(tmp_path, own):
    def write(loss):
        with kte.summary.create_file_writer(own).as_default():
            kte.summary.scalar("mine", loss[0])

    estimator = estimator_of(writing_model_fn(write), tmp_path / "run")
    estimator.train(TRAIN, steps=4)
    assert values_of(own) == {"mine": [1, 2, 3, 4]}
    estimator.evaluate(EVAL)
    assert values_of(own) == {"mine": [1, 2, 3, 4, *[4] * 4]}
    assert open_files(tmp_path) == []


def test_summaries_of_model_fn_are_readable(tmp_path, own):
    base = model_fn_of(linear)

    def model_fn(features, labels, mode, params):
        spec = base(features, labels, mode, params)
        with kte.summary.create_file_writer(own).as_default():
            kte.summary.scalar("mine", spec.loss)
        return spec

    estimator = estimator_of(model_fn, tmp_path / "run", save_summary_steps=1)
    estimator.train(TRAIN, steps=8)
    assert values_of(own) == {"mine": [4, 8]}
    estimator.evaluate(EVAL)
    assert values_of(own) == {"mine": [4, 8, 8]}
    assert open_files(tmp_path) == []


def test_summaries_written_before_a_call_are_readable_after_it(estimator, own):
    writer = kte.summary.create_file_writer(own)
    with writer.as_default():
        kte.summary.scalar("mine", 0.5, step=1)
        estimator.train(TRAIN, steps=4)
        assert values_of(own) == {"mine": [1]}
        kte.summary.scalar("mine", np.float32(0.25), step=2)
    assert values_of(own) == {"mine": [1, 2]}


@pytest.fixture
def unwritable(monkeypatch):
    """A directory that is not writable until it is removed."""
    directories = []
    flush = event_file.EventFile.flush

    def denied(file):
        if any(file._file.path.startswith(each) for each in directories):
            raise PermissionError(13, "Permission denied", file._file.path)
        flush(file)

    monkeypatch.setattr(event_file.EventFile, "flush", denied)
    return directories


def test_only_evaluate_raises_its_write_errors(estimator, unwritable, tmp_path):
    other = estimator_of(model_fn_of(linear), tmp_path / "other", save_summary_steps=1)
    for each in (estimator, other):
        each.train(TRAIN, steps=4)
        each.evaluate(EVAL)
    unwritable.append(estimator.model_dir)
    for _ in range(2):
        with pytest.raises(PermissionError):
            estimator.evaluate(EVAL)
        for each in (estimator, other):
            assert len(list(each.predict(batches_of(X)))) == len(X)
        other.train(TRAIN, steps=4)
        other.evaluate(EVAL)
    # Everything that can be written in the end is kept.
    unwritable.clear()
    list(other.predict(batches_of(X)))
    written = values_of(estimator.eval_dir())
    assert written["checkpoint_path"] == [4, 4, 4]


def test_training_raises_only_its_own_write_errors(estimator, unwritable, own):
    inside = []

    class Evaluate(kte.hooks.SessionRunHook):
        def after_run(self, run_context, run_values):
            writer = EventWriter.for_dir(own)
            writer.scalars({"before": 1.0}, step=1)
            unwritable[:] = [own]
            writer.scalars({"after": 1.0}, step=1)
            inside.append(run_context.session.evaluate(estimator, EVAL))

    with pytest.raises(PermissionError):
        estimator.train(TRAIN, hooks=[Evaluate()], steps=8)
    assert len(inside) == 2


def test_forgotten_writer_reports_lost_summaries(tmp_path, unwritable, caplog):
    writer = EventWriter(tmp_path)
    writer.scalars({"loss": 0.5}, step=1)
    writer.flush()
    unwritable.append(str(tmp_path))
    writer.scalars({"loss": 0.5}, step=2)
    del writer
    gc.collect()
    (told,) = caplog.messages
    assert told.startswith("Events are lost, because their file cannot be written: ")


def test_close_raises_write_errors(tmp_path, unwritable):
    writer = EventWriter(tmp_path)
    writer.scalars({"loss": 0.5}, step=1)
    unwritable.append(str(tmp_path))
    with pytest.raises(PermissionError):
        writer.close()
    unwritable.clear()
    writer.close()
    assert scalars(tmp_path) == ({"loss": [1]}, 1)
