"""Tests `train`: steps, loops, checkpoints, resuming and the end of input."""

import collections
import glob
import logging
import os

import jax
import jax.numpy as jnp
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
from keras import ops

import keras_tpu_estimator as kte

X, Y = regression_data()


class Recorder(kte.hooks.SessionRunHook):
    """Records the phases of a loop and their steps."""

    def __init__(self):
        self.calls = []

    def begin(self):
        self.calls.append("begin")

    def after_create_session(self, session, coord):
        self.calls.append(("create", int(session.run("global_step"))))

    def before_run(self, run_context):
        self.calls.append("before")
        return kte.hooks.SessionRunArgs({"step": "global_step", "loss": "loss"})

    def after_run(self, run_context, run_values):
        assert np.isfinite(run_values.results["loss"])
        self.calls.append(("after", int(run_values.results["step"])))

    def end(self, session):
        self.calls.append(("end", int(session.run("global_step"))))

    def steps(self):
        """The global step after each run."""
        return [c[1] for c in self.calls if c[0] == "after"]


class StopAt(kte.hooks.SessionRunHook):
    def __init__(self, step):
        self.step = step

    def after_run(self, run_context, run_values):
        if run_context.session.run("global_step") >= self.step:
            run_context.request_stop()


def linear_estimator(model_dir, **settings):
    return estimator_of(model_fn_of(linear), model_dir, **settings)


def saved_steps(model_dir):
    files = glob.glob(os.path.join(model_dir, "model.ckpt-*.h5"))
    return sorted(int(f.split("-")[-1].removesuffix(".h5")) for f in files)


@pytest.mark.parametrize(
    ("start", "arguments", "iterations", "expected"),
    [
        (0, {"steps": 10}, 4, [4, 8, 10]),
        (3, {"steps": 10}, 4, [7, 11, 13]),
        (3, {"max_steps": 10}, 4, [7, 10]),
        (0, {"steps": 12}, 40, [12]),
        (0, {"max_steps": 2}, 1, [1, 2]),
    ],
)
def test_steps_are_exact(start, arguments, iterations, expected, tmp_path):
    estimator = linear_estimator(tmp_path, iterations=iterations)
    if start:
        estimator.train(repeated(X, Y), steps=start)
    recorder = Recorder()
    result = estimator.train(repeated(X, Y), hooks=[recorder], **arguments)
    assert result is estimator
    assert recorder.steps() == expected
    assert estimator.get_variable_value("global_step") == expected[-1]


def test_loop_of_a_duration_grows_and_is_exact(tmp_path):
    recorder = Recorder()
    estimator = linear_estimator(tmp_path, iterations="1s")
    estimator.train(repeated(X, Y), hooks=[recorder], steps=50)
    steps = [0, *recorder.steps()]
    sizes = np.diff(steps)
    assert steps[-1] == 50 and sizes[0] == 1 and sizes.max() > 1
    assert all(size & (size - 1) == 0 for size in sizes[:-1])


def test_finished_training_calls_nothing(tmp_path, caplog):
    calls = []

    def model_fn(features, labels, mode, params):
        calls.append("model_fn")
        return model_fn_of(linear)(features, labels, mode, params)

    def input_fn(params):
        calls.append("input_fn")
        return repeated(X, Y)(params)

    estimator = estimator_of(model_fn, tmp_path)
    estimator.train(input_fn, max_steps=2)
    assert calls == ["input_fn", "model_fn"]
    recorder = Recorder()
    with caplog.at_level(logging.INFO):
        estimator.train(input_fn, max_steps=2, hooks=[recorder])
    assert len(calls) == 2 and not recorder.calls
    assert "Training ends without a step" in caplog.text


@pytest.mark.parametrize("iterations", [2, 3, 100])
def test_end_of_input_is_a_clean_stop(iterations, tmp_path):
    recorder = Recorder()
    estimator = linear_estimator(tmp_path, iterations=iterations)
    estimator.train(batches_of(X, Y), hooks=[recorder])  # Four batches.
    assert recorder.calls[:2] == ["begin", ("create", 0)]
    # The run without input begins but does not end.
    assert recorder.calls[-2:] == ["before", ("end", 4)]
    assert saved_steps(tmp_path) == [0, 4]


def test_last_partial_batch_is_trained_on(tmp_path):
    estimator = linear_estimator(tmp_path, batch=48, iterations=4)
    estimator.train(batches_of(X, Y))
    weight = np.zeros((3, 1), "float32")
    bias = 0.0
    for rows in (slice(48), slice(48, None)):
        x, y = X[rows], Y[rows]
        residual = x @ weight + bias - y
        weight = weight - 0.05 * 2 * x.T @ residual / len(x)
        bias = bias - 0.05 * 2 * residual.mean()
    np.testing.assert_allclose(
        estimator.get_variable_value("dense/kernel"), weight, rtol=1e-4
    )


def test_loops_are_exact_over_batches_of_two_sizes(tmp_path):
    def input_fn(params):
        while True:
            yield X[:48], Y[:48]
            yield X[:48], Y[:48]
            yield X[48:], Y[48:]

    recorder = Recorder()
    estimator = linear_estimator(tmp_path, batch=48, iterations=4)
    estimator.train(input_fn, hooks=[recorder], steps=10)
    assert recorder.steps() == [4, 8, 10]


def test_empty_input_is_a_warning(tmp_path, caplog):
    estimator = linear_estimator(tmp_path)
    estimator.train(lambda params: iter(()))
    assert "the input is empty" in caplog.text
    assert not os.path.exists(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("every", "iterations", "expected"),
    [(3, 4, [0, 4, 8, 12]), (5, 4, [0, 8, 12]), (100, 4, [0, 12])],
)
def test_checkpoints_come_at_loop_boundaries(every, iterations, expected, tmp_path):
    estimator = linear_estimator(
        tmp_path,
        iterations=iterations,
        config={"save_checkpoints_steps": every},
    )
    estimator.train(repeated(X, Y), steps=12)
    assert saved_steps(tmp_path) == expected


def test_no_checkpoints_if_disabled(tmp_path):
    estimator = linear_estimator(tmp_path, config={"save_checkpoints_steps": None})
    estimator.train(repeated(X, Y), steps=4)
    assert saved_steps(tmp_path) == []
    assert estimator.latest_checkpoint() is None


def test_checkpoint_limit_spans_calls(tmp_path):
    for _ in range(4):
        linear_estimator(tmp_path, config={"keep_checkpoint_max": 2}).train(
            repeated(X, Y), steps=1
        )
    assert saved_steps(tmp_path) == [3, 4]


def values(estimator):
    return kte.checkpoints.read(estimator.latest_checkpoint())


def momentum():
    return keras.optimizers.SGD(0.05, momentum=0.9)


@pytest.mark.parametrize("same_estimator", [True, False])
def test_resuming_equals_not_stopping(same_estimator, tmp_path):
    def make(directory):
        return estimator_of(
            model_fn_of(linear, momentum), tmp_path / directory, batch=64
        )

    whole = make("whole").train(repeated(X, Y), steps=8)
    parts = make("parts").train(repeated(X, Y), steps=3)
    if not same_estimator:
        parts = make("parts")
    parts.train(repeated(X, Y), max_steps=8)
    for path, value in values(whole).items():
        np.testing.assert_allclose(values(parts)[path], value, rtol=1e-6)


def test_loop_size_does_not_change_the_result(tmp_path):
    results = [
        values(
            linear_estimator(tmp_path / str(n), iterations=n).train(
                repeated(X, Y), steps=12
            )
        )
        for n in (1, 5, 12)
    ]
    for other in results[1:]:
        np.testing.assert_allclose(
            other["dense/kernel"], results[0]["dense/kernel"], rtol=1e-6
        )


def test_hook_may_stop_training(tmp_path):
    estimator = linear_estimator(tmp_path)
    estimator.train(repeated(X, Y), hooks=[StopAt(6)], steps=100)
    assert saved_steps(tmp_path) == [0, 8]


def test_listeners_are_called_for_every_checkpoint(tmp_path):
    class Listener(kte.hooks.CheckpointSaverListener):
        calls = []

        def begin(self):
            self.calls.append("begin")

        def before_save(self, session, step):
            assert step not in saved_steps(tmp_path)
            self.calls.append(("before", step))

        def after_save(self, session, step):
            assert step in saved_steps(tmp_path)
            self.calls.append(("after", step))
            return True  # A request to stop at the first checkpoint is ignored.

        def end(self, session, step):
            self.calls.append(("end", step))

    estimator = linear_estimator(tmp_path, config={"save_checkpoints_steps": 4})
    listener = Listener()
    estimator.train(repeated(X, Y), steps=100, saving_listeners=[listener])
    assert listener.calls == [
        "begin",
        ("before", 0),
        ("after", 0),
        ("before", 4),
        ("after", 4),
        ("end", 4),
    ]


@jax.custom_vjp
def poisoned(x, step):
    """Returns the same values, with a gradient that is NaN at step 4."""
    return x


poisoned.defvjp(
    lambda x, step: (x, step),
    lambda step, g: (jnp.where(step == 4, g * jnp.nan, g), None),
)


@pytest.mark.parametrize("save_steps", [1, 100])
def test_nonfinite_weights_are_not_saved(tmp_path, save_steps):
    def network(x, is_training):
        y = keras.layers.Dense(1)(x)
        if not is_training:
            return y
        return poisoned(y, ops.cast(kte.get_global_step(), "float32"))

    estimator = estimator_of(
        model_fn_of(network),
        tmp_path,
        iterations=1,
        config={"save_checkpoints_steps": save_steps},
    )
    with pytest.raises(
        kte.hooks.NanLossDuringTrainingError,
        match="'dense/(kernel|bias)' must be finite after step 5",
    ):
        estimator.train(repeated(X, Y), steps=5)
    last = 4 if save_steps == 1 else 0
    assert estimator.get_variable_value("global_step") == last
    assert np.isfinite(estimator.get_variable_value("dense/kernel")).all()


def test_nan_loss_is_an_error_and_not_saved(tmp_path):
    bad = X.copy()
    bad[40] = np.nan
    estimator = linear_estimator(
        tmp_path, iterations=1, config={"save_checkpoints_steps": 1}
    )
    told = []

    class Listener(kte.hooks.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            told.append(int(global_step_value))

    with pytest.raises(kte.hooks.NanLossDuringTrainingError, match="at step 3"):
        estimator.train(batches_of(bad, Y), saving_listeners=[Listener()])
    assert saved_steps(tmp_path) == told == [0, 1, 2]
    # The earlier checkpoint stays.
    estimator.train(repeated(X, Y), steps=1)
    assert saved_steps(tmp_path) == [0, 1, 2, 3]


def test_host_call_sees_every_step(tmp_path):
    def model_fn(features, labels, mode, params):
        spec = model_fn_of(linear)(features, labels, mode, params)
        step = keras.ops.reshape(kte.get_global_step(), (1,))
        return kte.TPUEstimatorSpec(
            mode,
            loss=spec.loss,
            train_op=spec.train_op,
            host_call=(host, {"step": step, "loss": spec.loss[None]}),
        )

    def host(step, loss):
        seen.append(int(step[0]))
        assert isinstance(loss, np.ndarray) and loss.shape == (1,)

    seen = []
    estimator_of(model_fn, tmp_path, iterations=4).train(repeated(X, Y), steps=10)
    assert seen == list(range(10))


def test_error_of_a_host_call_is_raised(tmp_path):
    def model_fn(features, labels, mode, params):
        spec = model_fn_of(linear)(features, labels, mode, params)
        return kte.TPUEstimatorSpec(
            mode,
            loss=spec.loss,
            train_op=spec.train_op,
            host_call=(host, [spec.loss[None]]),
        )

    def host(loss):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        estimator_of(model_fn, tmp_path).train(repeated(X, Y), steps=4)


def test_model_fn_is_traced_once_for_each_mode(tmp_path):
    traces = collections.Counter()

    def model_fn(features, labels, mode, params):
        traces[mode] += 1
        return model_fn_of(linear)(features, labels, mode, params)

    estimator = estimator_of(model_fn, tmp_path)
    for steps in (10, 7):
        estimator.train(repeated(X, Y), steps=steps)
        estimator.evaluate(batches_of(X, Y))
        assert len(list(estimator.predict(batches_of(X)))) == len(X)
    assert traces == {"train": 1, "eval": 1, "infer": 1}


def test_two_estimators_share_a_directory(tmp_path):
    first, second = linear_estimator(tmp_path), linear_estimator(tmp_path)
    first.train(repeated(X, Y), steps=2)
    second.train(repeated(X, Y), steps=2)
    # The first estimator's values are no longer the latest.
    assert first.evaluate(batches_of(X, Y))["global_step"] == 4
    first.train(repeated(X, Y), max_steps=5)
    assert saved_steps(tmp_path) == [0, 2, 4, 5]


def test_log_lines_match_the_original(tmp_path, caplog):
    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(iterations_per_loop=5),
        model_dir=str(tmp_path),
        log_step_count_steps=5,
    )
    estimator = kte.TPUEstimator(
        model_fn_of(linear),
        config=config,
        use_tpu=False,
        train_batch_size=16,
        eval_batch_size=16,
    )
    with caplog.at_level(logging.INFO):
        estimator.train(repeated(X, Y), steps=10)
        estimator.evaluate(batches_of(X, Y))
        linear_estimator(tmp_path).evaluate(batches_of(X, Y))
    for line in (
        "Saving checkpoints for 0 into",
        "loss = ",
        "step = 10",
        "global_step/sec: ",
        "examples/sec: ",
        "Loss for final step: ",
        "Saving dict for global step 10: global_step = 10, loss = ",
        "Restoring parameters from",
    ):
        assert line in caplog.text


def test_the_latest_values_are_not_read_again(tmp_path, caplog):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    config = kte.RunConfig(model_dir=str(tmp_path))
    estimator = kte.from_keras(model, config=config, use_tpu=False, train_batch_size=16)
    estimator.train(repeated(X, Y), steps=2)
    with caplog.at_level(logging.INFO):
        estimator.train(repeated(X, Y), steps=2)
    assert "Loss for final step: " in caplog.text
    assert "Restoring parameters from" not in caplog.text


def scalars(directory):
    """Tags, steps and values in a directory's event files."""
    from tensorboard.backend.event_processing import event_accumulator

    events = event_accumulator.EventAccumulator(str(directory)).Reload()
    return {
        tag: [(e.step, e.value) for e in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_summaries_are_read_by_tensorboard(tmp_path):
    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(iterations_per_loop=5),
        model_dir=str(tmp_path),
        log_step_count_steps=5,
        save_summary_steps=5,
    )
    estimator = kte.TPUEstimator(
        model_fn_of(linear),
        config=config,
        use_tpu=False,
        train_batch_size=16,
        eval_batch_size=16,
    )
    estimator.train(repeated(X, Y), steps=15)
    result = estimator.evaluate(batches_of(X, Y), name="held_out")
    written = scalars(tmp_path)
    assert [step for step, _ in written["loss"]] == [5, 10, 15]
    assert [step for step, _ in written["global_step/sec"]] == [5, 10, 15]
    rates = np.array([value for _, value in written["global_step/sec"]])
    examples = np.array([value for _, value in written["examples/sec"]])
    np.testing.assert_allclose(examples, 16 * rates, rtol=1e-5)
    assert estimator.eval_dir("held_out") == str(tmp_path / "eval_held_out")
    assert scalars(tmp_path / "eval_held_out")["loss"] == [
        (15, pytest.approx(float(result["loss"])))
    ]


def test_failed_call_leaves_no_unfinished_files(tmp_path):
    def model_fn(features, labels, mode, params):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        estimator_of(model_fn, tmp_path).train(repeated(X, Y), steps=1)
    assert os.listdir(tmp_path) == []


def test_no_checkpoints_are_kept_permanently_by_default(tmp_path):
    estimator = estimator_of(
        model_fn_of(linear),
        tmp_path,
        config={
            "keep_checkpoint_every_n_hours": None,
            "keep_checkpoint_max": 1,
            "save_checkpoints_steps": 2,
        },
        iterations=2,
    )
    estimator.train(repeated(X, Y), steps=4)
    assert not (tmp_path / "model.ckpt-2.h5").exists()
    assert estimator.get_variable_value("global_step") == 4
