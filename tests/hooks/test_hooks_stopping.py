"""Tests hooks that stop training, and the hook that waited in the original."""

import keras
import numpy as np
import pytest
from helpers import (
    LoopOf,
    batches_of,
    each_once,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    repeated,
    squared_error,
)

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.hooks.hook_list import HookList
from keras_tpu_estimator.api.hooks.stopping import steps_until_stop
from keras_tpu_estimator.typing import Session

X, Y = regression_data()
StopAt = kte.hooks.StopAtStepHook


def step_of(estimator):
    return int(estimator.get_variable_value("global_step"))


def stopped_at(hooks, steps, **values):
    """The step at which hooks stop, or `None`."""
    values |= {"global_step": steps[0], "loss": np.float32(0.5)}
    hook_list = HookList(hooks, Session(values.__getitem__, loop=LoopOf(values)))
    hook_list.begin()
    hook_list.after_create_session()
    for values["global_step"] in steps[1:]:
        if hook_list.before_run().after_run():
            return values["global_step"]
    return None


@pytest.mark.parametrize(
    ("stop", "use_tpu"),
    each_once(
        [
            (0, {"num_steps": 6}, 6),
            (0, {"num_steps": 1}, 1),
            # As in TensorFlow 1.15.5.
            (0, {"num_steps": 3.5}, 4),
            (0, {"last_step": 4.5}, 5),
            (0, {"last_step": 6}, 6),
            (3, {"num_steps": 6}, 9),
            (3, {"last_step": 6}, 6),
            (3, {"last_step": 3}, 4),
            (3, {"last_step": 1}, 4),
            (0, {"last_step": 1000}, 20),
        ],
        [False, True],
    ),
)
def test_stops_at_exactly_its_step(stop, use_tpu, tmp_path):
    start, hook, expected = stop
    estimator = estimator_of(model_fn_of(linear), tmp_path, use_tpu=use_tpu)
    if start:
        estimator.train(repeated(X, Y), steps=start)
    estimator.train(repeated(X, Y), hooks=[StopAt(**hook)], max_steps=20)
    assert step_of(estimator) == expected


def test_stops_endless_training(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    hook = StopAt(num_steps=6)
    for expected in (6, 12):  # Each call counts its own steps.
        estimator.train(repeated(X, Y), hooks=[hook])
        assert step_of(estimator) == expected


def test_hook_of_a_spec_stops_at_the_end_of_the_loop(tmp_path):
    def model_fn(features, labels, mode, params):
        loss = squared_error(linear(features, True), labels)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.05))
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss),
            training_hooks=[StopAt(last_step=6)],
        )

    estimator = estimator_of(model_fn, tmp_path, iterations=4)
    estimator.train(repeated(X, Y), steps=20)
    assert step_of(estimator) == 8


@pytest.mark.parametrize(
    ("hooks", "start", "steps", "expected"),
    [
        ([], 5, None, None),
        ([], 5, 10, 10),
        ([StopAt(num_steps=3)], 5, None, 3),
        ([StopAt(num_steps=3)], 5, 2, 2),
        ([StopAt(last_step=8), StopAt(num_steps=9)], 5, 10, 3),
        ([StopAt(last_step=4)], 5, 10, 1),
        ([kte.hooks.SessionRunHook()], 5, 10, 10),
    ],
)
def test_steps_until_stop(hooks, start, steps, expected):
    assert steps_until_stop(hooks, start, steps) == expected


@pytest.mark.parametrize("arguments", [{}, {"num_steps": 1, "last_step": 1}])
def test_exactly_one_limit_is_required(arguments):
    with pytest.raises(ValueError, match="Exactly one of `num_steps` and `la"):
        StopAt(**arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"num_steps": 4}, 9),
        ({"last_step": 7}, 8),
        ({"last_step": 2}, 6),
        ({"last_step": 90}, None),
    ],
)
def test_stops_in_the_run_that_reaches_the_step(arguments, expected):
    assert stopped_at([StopAt(**arguments)], [5, 6, 8, 9, 12]) == expected


def test_hook_for_several_hosts_is_a_stop_at_step_hook(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    hook = kte.hooks.make_stop_at_checkpoint_step_hook(estimator, 6)
    assert type(hook) is StopAt
    estimator.train(repeated(X, Y), hooks=[hook])
    assert step_of(estimator) == 6
    with pytest.raises(ValueError, match="Exactly one"):
        kte.hooks.make_stop_at_checkpoint_step_hook(estimator, None)


NAN = np.array([1.0, np.nan], "float32")


@pytest.mark.parametrize("value", [np.float32(np.nan), NAN])
def test_nan_is_an_error(value):
    hook = kte.hooks.NanTensorHook("value")
    with pytest.raises(
        kte.hooks.NanLossDuringTrainingError,
        match="NaN value during training.* at step 6.*Lower the learning rate",
    ):
        stopped_at([hook], [4, 6, 7], value=value)


def test_nan_may_stop_training(caplog):
    hook = kte.hooks.NanTensorHook("value", fail_on_nan_loss=False)
    assert stopped_at([hook], [4, 6, 7], value=NAN) == 6
    assert "NaN value during training" in caplog.text
    assert stopped_at([hook], [4, 6, 7], value=NAN[:1]) is None
    # Infinity is not NaN.
    assert stopped_at([hook], [4, 6, 7], value=np.array(np.inf)) is None


def test_nan_in_a_variable_stops_training(tmp_path):
    bad = X.copy()
    bad[20] = np.nan

    def model_fn(features, labels, mode, params):
        # The loss does not show it.
        spec = model_fn_of(linear)(features, labels, mode, params)
        return kte.TPUEstimatorSpec(
            mode, loss=0.0 * keras.ops.sum(labels), train_op=spec.train_op
        )

    estimator = estimator_of(model_fn, tmp_path, iterations=1)
    hook = kte.hooks.NanTensorHook("dense/kernel", fail_on_nan_loss=False)
    # Training may stop, but the useless values are not saved.
    with pytest.raises(
        kte.hooks.NanLossDuringTrainingError, match="must be finite after step 2"
    ):
        estimator.train(batches_of(bad, Y), hooks=[hook])
    assert step_of(estimator) == 0


def test_nan_hook_requires_a_name():
    with pytest.raises(TypeError, match=r"`loss_tensor` .*kte.identity\(x, na"):
        kte.hooks.NanTensorHook(np.float32(1))


@pytest.mark.parametrize(("wait_until", "warned"), [(0, False), (5, False), (6, True)])
def test_waiter_hook_does_not_wait(wait_until, warned, caplog):
    hook = kte.hooks.GlobalStepWaiterHook(wait_until)
    assert stopped_at([hook], [5, 6]) is None
    assert ("does not wait for global step 6" in caplog.text) == warned
