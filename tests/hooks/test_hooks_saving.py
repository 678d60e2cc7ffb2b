"""Tests `CheckpointSaverHook` as users make it, and `FinalOpsHook`."""

import dataclasses
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
    squared_error,
)

import keras_tpu_estimator as kte

X, Y = regression_data()
NO_SAVING = {"save_checkpoints_secs": None}


def saved_steps(directory, basename="model.ckpt"):
    files = glob.glob(os.path.join(directory, f"{basename}-*.h5"))
    return sorted(int(f.split("-")[-1].removesuffix(".h5")) for f in files)


def saver(directory, **arguments):
    return kte.hooks.CheckpointSaverHook(directory, save_steps=4, **arguments)


class Listener(kte.hooks.CheckpointSaverListener):
    """Records the saved steps."""

    def __init__(self):
        self.steps = []

    def after_save(self, session, global_step_value):
        self.steps.append(global_step_value)


def with_training_hook(hook):
    """A model_fn with one training hook."""

    def model_fn(features, labels, mode, params):
        loss = squared_error(linear(features, True), labels)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.05))
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss),
            training_hooks=[hook],
        )

    return model_fn


@pytest.mark.parametrize("config", [{}, NO_SAVING])
@pytest.mark.parametrize("place", ["hooks", "spec"])
def test_saver_replaces_the_automatic_one(place, config, tmp_path):
    hook = saver(tmp_path)
    if place == "hooks":
        model_fn, hooks = model_fn_of(linear), [hook]
    else:
        model_fn, hooks = with_training_hook(hook), []
    listener = Listener()
    estimator = estimator_of(model_fn, tmp_path, config=config)
    estimator.train(repeated(X, Y), hooks=hooks, steps=10, saving_listeners=[listener])
    assert saved_steps(tmp_path) == listener.steps == [0, 4, 8, 10]


def test_saver_writes_to_another_directory(tmp_path):
    elsewhere = tmp_path / "else" / "where"
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(repeated(X, Y), hooks=[saver(elsewhere)], steps=6)
    assert saved_steps(tmp_path) == []
    assert saved_steps(elsewhere) == [0, 4, 6]
    values = kte.checkpoints.read(kte.checkpoints.latest(elsewhere))
    copy = estimator_of(model_fn_of(linear), elsewhere)
    result = copy.evaluate(batches_of(X, Y))
    error = X @ values["dense/kernel"] + values["dense/bias"] - Y
    assert result["loss"] == pytest.approx(np.mean(error**2), rel=1e-4)
    assert copy.train(repeated(X, Y), max_steps=6) is copy


def test_training_resumes_from_the_hooks_checkpoint(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    for _ in range(2):
        hook = saver(tmp_path)
        estimator.train(repeated(X, Y), hooks=[hook], steps=4)
    assert saved_steps(tmp_path) == [0, 4, 8]
    whole = estimator_of(model_fn_of(linear), tmp_path / "whole")
    whole.train(repeated(X, Y), steps=8)
    for name in ("dense/kernel", "dense/bias"):
        np.testing.assert_allclose(
            estimator.get_variable_value(name),
            whole.get_variable_value(name),
            rtol=1e-5,
        )


def test_two_savers_in_two_directories(tmp_path):
    hooks = [saver(tmp_path), saver(tmp_path / "copies")]
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(repeated(X, Y), hooks=hooks, steps=4)
    assert saved_steps(tmp_path) == saved_steps(tmp_path / "copies") == [0, 4]
    # Only one of the directories has the checkpoint that training resumes from.
    estimator.train(repeated(X, Y), hooks=[saver(tmp_path / "new")], steps=4)
    assert saved_steps(tmp_path / "new") == [4, 8]


def test_basename_of_checkpoints(tmp_path):
    hook = saver(tmp_path, checkpoint_basename="linear")
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(repeated(X, Y), hooks=[hook], steps=4)
    assert saved_steps(tmp_path, "linear") == [0, 4]
    assert estimator.latest_checkpoint() == str(tmp_path / "linear-4")


def test_configuration_limits_the_number_of_checkpoints(tmp_path):
    estimator = estimator_of(
        model_fn_of(linear), tmp_path, config={"keep_checkpoint_max": 2}
    )
    estimator.train(repeated(X, Y), hooks=[saver(tmp_path)], steps=16)
    assert saved_steps(tmp_path) == [12, 16]


def test_retention_of_a_hook_and_of_a_save(tmp_path):
    class Own(kte.hooks.SessionRunHook):
        def after_run(self, run_context, run_values):
            run_context.session.save_checkpoint(
                tmp_path / "own", retention=kte.checkpoints.Retention(2)
            )

    estimator = estimator_of(model_fn_of(linear), tmp_path)
    one = kte.checkpoints.Retention(1)
    hooks = [saver(tmp_path / "other", saver=one), Own()]
    estimator.train(repeated(X, Y), hooks=hooks, steps=9)
    assert saved_steps(tmp_path / "other") == [9]
    assert saved_steps(tmp_path / "own") == [8, 9]


def test_retention_of_a_save_is_checked(tmp_path):
    class Own(kte.hooks.SessionRunHook):
        def after_run(self, run_context, run_values):
            run_context.session.save_checkpoint(tmp_path / "own", retention=2)

    estimator = estimator_of(model_fn_of(linear), tmp_path)
    with pytest.raises(TypeError, match="must be a kte.checkpoints.Retention"):
        estimator.train(repeated(X, Y), hooks=[Own()], steps=1)


def test_listeners_of_train_are_called_only_in_that_call(tmp_path):
    own, other = Listener(), Listener()
    hook = saver(tmp_path, listeners=[own])
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(
        repeated(X, Y), hooks=[hook], steps=4, saving_listeners=[other, own]
    )
    assert own.steps == other.steps == [0, 4]
    estimator.train(repeated(X, Y), hooks=[hook], steps=4)
    assert own.steps == [0, 4, 4, 8]
    assert other.steps == [0, 4]


@dataclasses.dataclass
class Counts(kte.hooks.CheckpointSaverListener):
    """Counts its calls, and equals other listeners with the same counts."""

    begins: int = 0
    saves: int = 0
    ends: int = 0

    def begin(self):
        self.begins += 1

    def after_save(self, session, global_step_value):
        self.saves += 1

    def end(self, session, global_step_value):
        self.ends += 1


@pytest.mark.parametrize("place", ["train", "spec", "hook", "both"])
def test_duplicate_listener_is_called_once(place, tmp_path):
    one, other = Counts(), Counts()
    twice = [one, other, one]
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    hooks, listeners = [], []
    if place in ("hook", "both"):
        hooks = [saver(tmp_path, listeners=twice)]
    if place in ("train", "spec", "both"):
        listeners = twice
    if place == "spec":
        kte.train_and_evaluate(
            estimator,
            kte.TrainSpec(repeated(X, Y), max_steps=4, saving_listeners=listeners),
            kte.EvalSpec(batches_of(X, Y)),
        )
    else:
        estimator.train(
            repeated(X, Y), hooks=hooks, steps=4, saving_listeners=listeners
        )
    assert one == other == Counts(begins=1, saves=2, ends=1)


def test_only_the_first_saver_has_the_listeners_of_train(tmp_path):
    listener = Listener()
    hooks = [saver(tmp_path), saver(tmp_path / "copies")]
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(repeated(X, Y), hooks=hooks, steps=4, saving_listeners=[listener])
    assert listener.steps == [0, 4]


def test_saver_object_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`saver` must be .* Pass Retention"):
        saver(tmp_path, saver=object())


def test_listeners_of_a_saver_are_validated(tmp_path):
    with pytest.raises(TypeError, match="listeners must be CheckpointSaver"):
        saver(tmp_path, listeners=[kte.hooks.SessionRunHook()])


@pytest.mark.parametrize("wrong", [Listener(), 5])
def test_listeners_must_be_in_a_list(wrong, tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    message = "`{0}` must be a list .*Received: .* Pass {0}=\\[listener\\]"
    with pytest.raises(TypeError, match=message.format("saving_listeners")):
        estimator.train(repeated(X, Y), steps=1, saving_listeners=wrong)
    with pytest.raises(TypeError, match=message.format("saving_listeners")):
        kte.TrainSpec(repeated(X, Y), saving_listeners=wrong)
    with pytest.raises(TypeError, match=message.format("listeners")):
        saver(tmp_path, listeners=wrong)


def test_session_saves_on_request(tmp_path):
    class SaveAtOnce(kte.hooks.SessionRunHook):
        def after_run(self, run_context, run_values):
            assert run_context.session.saved_step(tmp_path) is None
            run_context.session.save_checkpoint(tmp_path)
            run_context.request_stop()

    estimator = estimator_of(model_fn_of(linear), tmp_path, config=NO_SAVING)
    estimator.train(repeated(X, Y), hooks=[SaveAtOnce()], steps=100)
    assert saved_steps(tmp_path) == [4]


@pytest.mark.parametrize(
    "final_ops",
    ["dense/bias", ["loss", "dense/bias"], {"step": "global_step"}, None],
)
def test_final_values(final_ops, tmp_path):
    hook = kte.hooks.FinalOpsHook(final_ops)
    assert hook.final_ops_values is None
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(repeated(X, Y), hooks=[hook], steps=6)
    bias = estimator.get_variable_value("dense/bias")
    values = hook.final_ops_values
    if final_ops == "dense/bias":
        np.testing.assert_array_equal(values, bias)
    elif final_ops is None:
        assert values is None
    elif isinstance(final_ops, list):
        assert isinstance(values, list) and values[0] > 0
        np.testing.assert_array_equal(values[1], bias)
    else:
        assert values == {"step": 6}


def test_final_values_of_an_evaluation(tmp_path):
    hook = kte.hooks.FinalOpsHook(["loss", "global_step"])
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    result = estimator.evaluate(batches_of(X, Y), hooks=[hook])
    assert hook.final_ops_values == [result["loss"], 0]


def test_final_values_have_names(tmp_path):
    with pytest.raises(TypeError, match=r"`final_ops` .*kte.identity\(x, name"):
        kte.hooks.FinalOpsHook({"loss": np.float32(1)})
    with pytest.raises(ValueError, match="`final_ops_feed_dict` must be"):
        kte.hooks.FinalOpsHook("loss", {"x": 1})
    hook = kte.hooks.FinalOpsHook("accuracy")
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    with pytest.raises(KeyError, match="must be 'loss'.* Received: 'accuracy'"):
        estimator.evaluate(batches_of(X, Y), hooks=[hook])


@pytest.mark.parametrize("feed_fn", [dict, None])
def test_feed_fn_is_refused_with_advice(feed_fn):
    with pytest.raises(
        ValueError, match="`feed_fn` .* features that `input_fn` yields, or"
    ):
        kte.hooks.FeedFnHook(feed_fn)
