"""Tests the calls and steps that every hook sees, in every mode."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

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

# 35 batches of 16 and a smaller one. On a TPU an evaluation has runs of 32 and 4.
# Elsewhere each batch is a run, because the recorder needs it.
X, Y = regression_data(examples=565)
FEW = X[:40]
LOOP, STEPS = 4, 10
RUNS = {"train": 3, "evaluate on one core": 36, "evaluate": 2, "predict": 3}
MODES = ("train", "evaluate", "predict")
CORES = {"one core": False, "eight cores": True}


class Recorder(kte.hooks.SessionRunHook):
    """Records every call, the global step, and the kernel."""

    def __init__(self):
        self.calls, self.kernels = [], {}

    def begin(self):
        self.calls.append("begin")

    def after_create_session(self, session, coord):
        self.calls.append(("create", int(session.run("global_step"))))

    def before_run(self, run_context):
        step = int(run_context.session.run("global_step"))
        self.calls.append(("before", step))
        return kte.hooks.SessionRunArgs(["global_step", "dense/kernel"])

    def after_run(self, run_context, run_values):
        step, kernel = run_values.results
        self.calls.append(("after", int(step)))
        self.kernels[int(step)] = kernel

    def end(self, session):
        self.calls.append(("end", int(session.run("global_step"))))


@dataclasses.dataclass(frozen=True)
class Place:
    """An estimator that runs hooks, and its directory."""

    estimator: kte.TPUEstimator
    directory: str

    def run(self, mode: str, hooks: list[Any]) -> None:
        """Runs one mode with hooks, from step 0."""
        if mode == "train":
            self.estimator.train(repeated(X, Y), hooks=hooks, steps=STEPS)
        elif mode == "evaluate":
            self.estimator.evaluate(batches_of(X, Y), hooks=hooks)
        else:
            list(self.estimator.predict(batches_of(FEW), hooks=hooks))


HOOKS: dict[str, Callable[[Place], kte.hooks.SessionRunHook]] = {
    "SessionRunHook": lambda place: kte.hooks.SessionRunHook(),
    "CheckpointSaverHook": lambda place: kte.hooks.CheckpointSaverHook(
        place.directory, save_steps=1
    ),
    "FinalOpsHook": lambda place: kte.hooks.FinalOpsHook("dense/bias"),
    "GlobalStepWaiterHook": lambda place: kte.hooks.GlobalStepWaiterHook(5),
    "InMemoryEvaluatorHook": lambda place: kte.hooks.InMemoryEvaluatorHook(
        place.estimator, batches_of(FEW, Y[:40]), every_n_iter=2
    ),
    "LoggingTensorHook": lambda place: kte.hooks.LoggingTensorHook(
        ["global_step", "dense/kernel"], every_n_iter=1, at_end=True
    ),
    "NanTensorHook": lambda place: kte.hooks.NanTensorHook("dense/kernel"),
    "ProfilerHook": lambda place: kte.hooks.ProfilerHook(
        save_steps=1, output_dir=place.directory
    ),
    "StepCounterHook": lambda place: kte.hooks.StepCounterHook(
        every_n_steps=1, output_dir=place.directory
    ),
    "StopAtStepHook": lambda place: kte.hooks.StopAtStepHook(last_step=6),
    "SummarySaverHook": lambda place: kte.hooks.SummarySaverHook(
        save_steps=1, output_dir=place.directory, summary_op="dense/bias"
    ),
    "make_stop_at_checkpoint_step_hook": lambda place: (
        kte.experimental.make_stop_at_checkpoint_step_hook(place.estimator, 7)
    ),
}
LAST_STEP = {"StopAtStepHook": 6, "make_stop_at_checkpoint_step_hook": 7}
TRAINING_ONLY = ("CheckpointSaverHook", "InMemoryEvaluatorHook")


def runs_of(mode, use_tpu):
    """The number of runs."""
    one_core = f"{mode} on one core"
    return RUNS[mode] if use_tpu else RUNS.get(one_core, RUNS[mode])


def expected_calls(name, mode, use_tpu):
    """The events that the recorder, which follows the hook, must see."""
    if mode == "train":
        last = LAST_STEP.get(name, STEPS)
        bounds = [*range(0, last, LOOP), last]
        runs = [
            call
            for start, end in zip(bounds[:-1], bounds[1:], strict=True)
            for call in (("before", start), ("after", end))
        ]
        return ["begin", ("create", 0), *runs, ("end", last)]
    if name in TRAINING_ONLY:
        return ["begin"]
    runs = [("before", 0), ("after", 0)] * runs_of(mode, use_tpu)
    # The run at the end of the input begins but does not end.
    return ["begin", ("create", 0), *runs, ("before", 0), ("end", 0)]


@pytest.fixture(scope="module", params=CORES)
def estimator(request, tmp_path_factory):
    """An estimator that saves nothing, so that training starts from step 0."""
    return estimator_of(
        model_fn_of(linear),
        tmp_path_factory.mktemp("model"),
        use_tpu=CORES[request.param],
        iterations=LOOP,
        config={"save_checkpoints_secs": None},
    )


def test_table_has_every_hook():
    exported = {
        name
        for name in kte.hooks.__all__
        if name.startswith("make_")
        or isinstance(getattr(kte.hooks, name), type)
        and issubclass(getattr(kte.hooks, name), kte.hooks.SessionRunHook)
    }
    # The first cannot be instantiated; the second needs callbacks.
    assert set(HOOKS) == exported - {"FeedFnHook", "CallbackHook"}


@pytest.mark.rows(31)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_the_same_calls_and_steps(name, mode, estimator, tmp_path):
    place, recorder = Place(estimator, str(tmp_path)), Recorder()
    hooks = [HOOKS[name](place), recorder]
    if mode != "train" and name in TRAINING_ONLY:
        with pytest.raises(RuntimeError, match="Only hooks of `train` may"):
            place.run(mode, hooks)
    else:
        place.run(mode, hooks)
    assert recorder.calls == expected_calls(
        name, mode, estimator._context.mode_devices.use_tpu
    )
    for step, kernel in recorder.kernels.items():
        np.testing.assert_allclose(kernel, KERNELS[step], rtol=1e-5)


def gradient_descent():
    """The kernel after each step, computed with NumPy."""
    kernel, bias = np.zeros((3, 1), "float32"), np.zeros(1, "float32")
    kernels = [kernel]
    for step in range(STEPS):
        x, y = X[16 * step :][:16], Y[16 * step :][:16]
        error = 2 * (x @ kernel + bias - y) / 16
        kernel, bias = kernel - 0.05 * x.T @ error, bias - 0.05 * error.sum(0)
        kernels.append(kernel)
    return kernels


KERNELS = gradient_descent()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cores", CORES)
def test_hooks_of_the_spec_follow_those_of_the_call(mode, cores, tmp_path):
    calls = []

    class Named(kte.hooks.SessionRunHook):
        def __init__(self, name):
            self.name = name

        def after_run(self, run_context, run_values):
            calls.append(self.name)

    def model_fn(features, labels, mode, params):
        spec = model_fn_of(linear)(features, labels, mode, params)
        return dataclasses.replace(
            spec,
            training_hooks=[Named("of train"), Named("second")],
            evaluation_hooks=[Named("of evaluate"), Named("second")],
            prediction_hooks=[Named("of predict"), Named("second")],
        )

    estimator = estimator_of(model_fn, tmp_path, use_tpu=CORES[cores])
    Place(estimator, str(tmp_path)).run(mode, [Named("user"), Named("other")])
    runs = runs_of(mode, CORES[cores])
    assert calls == ["user", "other", f"of {mode}", "second"] * runs


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cores", CORES)
def test_wrong_hooks_are_refused(mode, cores, tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path, use_tpu=CORES[cores])
    place = Place(estimator, str(tmp_path))
    with pytest.raises(TypeError, match="All `hooks` must be SessionRunHook"):
        place.run(mode, ["hook"])
    with pytest.raises(TypeError, match="`hooks` must be a list of hooks"):
        place.run(mode, kte.hooks.SessionRunHook())


ARGUMENTS = {
    "CheckpointSaverHook": "checkpoint_dir save_secs=None save_steps=None "
    "saver=None checkpoint_basename='model.ckpt' scaffold=None listeners=None "
    "save_graph_def=True",
    "FeedFnHook": "feed_fn",
    "FinalOpsHook": "final_ops final_ops_feed_dict=None",
    "GlobalStepWaiterHook": "wait_until_step",
    "InMemoryEvaluatorHook": "estimator input_fn steps=None hooks=None "
    "name=None every_n_iter=100",
    "LoggingTensorHook": "tensors every_n_iter=None every_n_secs=None "
    "at_end=False formatter=None",
    "NanTensorHook": "loss_tensor='loss' fail_on_nan_loss=True",
    "ProfilerHook": "save_steps=None save_secs=None output_dir='' "
    "show_dataflow=True show_memory=False",
    "SessionRunArgs": "fetches feed_dict=None options=None",
    "StepCounterHook": "every_n_steps=100 every_n_secs=None output_dir=None "
    "summary_writer=None",
    "StopAtStepHook": "num_steps=None last_step=None",
    "SummarySaverHook": "save_steps=None save_secs=None output_dir=None "
    "summary_writer=None scaffold=None summary_op=None",
    "make_stop_at_checkpoint_step_hook": "estimator last_step "
    "wait_after_file_check_secs=30",
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_match_the_original(name):
    parameters = inspect.signature(getattr(kte.hooks, name)).parameters
    written = [
        each.name
        if each.default is inspect.Parameter.empty
        else f"{each.name}={each.default!r}"
        for each in parameters.values()
    ]
    assert " ".join(written) == ARGUMENTS[name]
