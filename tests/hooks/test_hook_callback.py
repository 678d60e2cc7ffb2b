"""Tests hooks in the loops of plain Keras models."""

import os
import pathlib

import keras
import numpy as np
import pytest
from helpers import linear, model_fn_of, regression_data

import keras_tpu_estimator as kte
from keras_tpu_estimator import summary
from keras_tpu_estimator.base.mesh.all_cores import all_cores
from keras_tpu_estimator.base.mesh.cores import ONE_CORE
from keras_tpu_estimator.hooks import (
    CheckpointSaverHook,
    NanTensorHook,
    ProfilerHook,
    StepCounterHook,
    SummarySaverHook,
)

X, Y = regression_data()


def keras_model(rate=0.05, **settings):
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(1, kernel_initializer="zeros", name="dense"),
        ]
    )
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    model.compile(optimizer, "mse", metrics=["mae"], **settings)
    return model


def fit(model, *hooks, **settings):
    """Fits four batches in each epoch."""
    return model.fit(
        X,
        Y,
        batch_size=16,
        shuffle=False,
        verbose=0,
        callbacks=[kte.hooks.as_callback(hook) for hook in hooks],
        **settings,
    )


class Recorder(kte.hooks.SessionRunHook):
    """Records every call and its fetches."""

    def __init__(self, fetches=None, stop_at=None):
        self.calls, self.results = [], []
        self.fetches, self.stop_at = fetches, stop_at

    def begin(self):
        self.calls.append("begin")

    def after_create_session(self, session, coord):
        self.calls.append("session")

    def before_run(self, run_context):
        self.calls.append("before")
        return self.fetches and kte.hooks.SessionRunArgs(self.fetches)

    def after_run(self, run_context, run_values):
        self.calls.append("after")
        self.results.append(run_values.results)
        if self.calls.count("before") == self.stop_at:
            run_context.request_stop()

    def end(self, session):
        self.calls.append("end")


def test_calls_of_fit_without_its_validation():
    recorder = Recorder()
    fit(keras_model(), recorder, epochs=2, validation_data=(X, Y))
    start = ["begin", "session"]
    assert recorder.calls == [*start, *["before", "after"] * 8, "end"]


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_calls_of_evaluate_and_predict(method):
    model, recorder = keras_model(), Recorder()
    callbacks = [kte.hooks.as_callback(recorder)]
    data = (X, Y) if method == "evaluate" else (X,)
    for _ in range(2):
        getattr(model, method)(*data, batch_size=32, verbose=0, callbacks=callbacks)
    once = ["begin", "session", *["before", "after"] * 2, "end"]
    assert recorder.calls == once * 2


def test_fetches_are_those_after_the_batch():
    names = ["global_step", "loss", "mae", "dense/kernel"]
    model = keras_model()
    paths = [v.path for v in (*model.variables, *model.optimizer.variables)]
    kernel = next(path for path in paths if path.endswith("dense/kernel"))
    names[3] = kernel
    recorder = Recorder(names)
    history = fit(model, recorder, epochs=2).history
    assert [int(step) for step, *_ in recorder.results] == list(range(1, 9))
    # Keras logs the mean since the beginning of the epoch.
    for epoch in range(2):
        _, loss, mae, _ = recorder.results[4 * epoch + 3]
        assert loss == pytest.approx(history["loss"][epoch])
        assert mae == pytest.approx(history["mae"][epoch])
    kernels = [value for *_, value in recorder.results]
    np.testing.assert_array_equal(kernels[-1], model.get_weights()[0])
    assert len({value.tobytes() for value in kernels}) == 8


def test_fetches_of_optimizer_variables():
    model = keras_model()
    model.optimizer.build(model.trainable_variables)
    path = model.optimizer.variables[-1].path
    recorder = Recorder({"slot": path})
    fit(model, recorder)
    np.testing.assert_array_equal(
        recorder.results[-1]["slot"], model.optimizer.variables[-1].numpy()
    )


def test_run_has_the_steps_of_an_execution():
    recorder = Recorder("global_step")
    fit(keras_model(steps_per_execution=2), recorder)
    assert [int(step) for step in recorder.results] == [2, 4]


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_hook_may_stop_fit(method):
    recorder = Recorder(stop_at=2)
    data = (X,) if method == "predict" else (X, Y)
    getattr(keras_model(), method)(
        *data,
        batch_size=16,
        verbose=0,
        callbacks=[kte.hooks.as_callback(recorder)],
    )
    assert recorder.calls.count("before") == 2
    assert recorder.calls[-1] == "end"


def test_predictions_are_fetched():
    recorder = Recorder("outputs")
    predictions = keras_model().predict(
        X,
        batch_size=32,
        verbose=0,
        callbacks=[kte.hooks.as_callback(recorder)],
    )
    np.testing.assert_array_equal(np.concatenate(recorder.results), predictions)


def test_unknown_fetches_are_an_error():
    with pytest.raises(KeyError, match="Received: 'acc'.*'loss', 'mae'"):
        fit(keras_model(), Recorder("acc"))


def test_global_step_needs_an_optimizer():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    callback = kte.hooks.as_callback(Recorder("global_step"))
    with pytest.raises(KeyError, match="if the model has an optimizer"):
        model.predict(X, verbose=0, callbacks=[callback])


def test_callback_is_usable_after_an_error():
    class Failing(Recorder):
        def after_run(self, run_context, run_values):
            raise RuntimeError("on purpose")

    model = keras_model()
    hook = Failing()
    callback = kte.hooks.as_callback(hook)
    for method in (model.fit, model.evaluate):
        with pytest.raises(RuntimeError, match="on purpose"):
            method(X, Y, verbose=0, callbacks=[callback])
    assert hook.calls == ["begin", "session", "before"] * 2


@pytest.mark.parametrize(
    "wrong",
    [
        "hook",
        kte.hooks.SessionRunHook,
        keras.callbacks.History(),
        kte.hooks.CallbackHook(keras.callbacks.History()),
    ],
)
def test_other_objects_are_refused(wrong):
    with pytest.raises(TypeError, match="must receive a SessionRunHook"):
        kte.hooks.as_callback(wrong)


def test_nan_hook_in_fit():
    with pytest.raises(kte.hooks.NanLossDuringTrainingError, match="at step"):
        fit(keras_model(rate=1e18), NanTensorHook(), epochs=9)


def test_checkpoint_saver_in_fit(tmp_path):
    model = keras_model()
    fit(model, CheckpointSaverHook(tmp_path, save_steps=3))
    names = sorted(file.name for file in tmp_path.glob("*.h5"))
    assert names == [f"model.ckpt-{step}.h5" for step in (0, 3, 4)]
    values = kte.checkpoints.read(f"{tmp_path}/model.ckpt-4")
    assert values["global_step"] == 4
    for variable in [*model.variables, *model.optimizer.variables]:
        np.testing.assert_array_equal(values[variable.path], variable.numpy())


def test_summary_saver_and_step_counter_in_fit(tmp_path, caplog):
    writer = summary.EventWriter.for_dir(str(tmp_path))
    with caplog.at_level("INFO", "keras_tpu_estimator"):
        fit(
            keras_model(),
            SummarySaverHook(save_steps=2, summary_writer=writer),
            StepCounterHook(every_n_steps=1, summary_writer=writer),
        )
    assert "global_step/sec" in caplog.text
    assert list(tmp_path.iterdir())


@pytest.mark.parametrize("path", [os.fsdecode, os.fsencode])
def test_saved_step_is_found_for_every_kind_of_path(path, tmp_path):
    class SaveOnce(kte.hooks.SessionRunHook):
        def end(self, session):
            session.save_checkpoint(path(tmp_path))
            assert session.saved_step(path(tmp_path)) == 4
            assert session.saved_step(tmp_path) == 4

    fit(keras_model(), SaveOnce())


@pytest.mark.parametrize(
    ("method", "path"),
    [("fit", os.fspath), ("evaluate", os.fsencode), ("predict", pathlib.Path)],
)
def test_profiler_in_fit(tmp_path, method, path):
    hook = ProfilerHook(save_steps=100, output_dir=path(tmp_path))
    data = (X,) if method == "predict" else (X, Y)
    getattr(keras_model(), method)(
        *data,
        batch_size=16,
        verbose=0,
        callbacks=[kte.hooks.as_callback(hook)],
    )
    step = 1 if method == "fit" else 0
    assert list(tmp_path.glob(f"plugins/profile/*_step_{step}/*.xplane.pb"))


@pytest.mark.parametrize(
    "cores", [lambda: ONE_CORE, all_cores], ids=["one core", "eight cores"]
)
def test_hooks_in_the_fit_of_an_estimator_model(cores):
    model = kte.EstimatorModel.from_model_fn(model_fn_of(linear), cores=cores())
    recorder = Recorder(["global_step", "dense/kernel"], stop_at=6)
    fit(model, recorder, epochs=9)
    steps, kernels = zip(*recorder.results, strict=True)
    assert [int(step) for step in steps] == [1, 2, 3, 4, 5, 6]
    np.testing.assert_array_equal(kernels[-1], model.get_weights()[0])
    # Predictions have the names of Keras's logs.
    predicting = Recorder("y")
    callbacks = [kte.hooks.as_callback(predicting)]
    predictions = model.predict(X, batch_size=64, verbose=0, callbacks=callbacks)
    np.testing.assert_array_equal(predicting.results[0], predictions["y"])
