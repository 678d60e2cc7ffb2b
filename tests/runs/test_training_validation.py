"""Tests `train(validation=...)`, which gives callbacks results during training."""

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

X, Y = regression_data()
HELD_OUT = regression_data(examples=37, seed=1)
held_out = batches_of(*HELD_OUT)


def model_fn(features, labels, mode, params):
    if mode != kte.ModeKeys.EVAL:
        return model_fn_of(linear)(features, labels, mode, params)
    outputs = linear(features, False)

    def metric_fn(labels, outputs):
        return {"error": kte.metrics.mean_absolute_error(labels, outputs)}

    return kte.TPUEstimatorSpec(
        mode,
        loss=keras.ops.mean((outputs - labels) ** 2),
        eval_metrics=(metric_fn, [labels, outputs]),
    )


class Logs(keras.callbacks.Callback):
    """Records the logs of epochs and of the end of training."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(logs)

    def on_train_end(self, logs=None):
        self.last = logs


@pytest.mark.parametrize("use_tpu", [False, True])
def test_callbacks_see_what_evaluate_returns(tmp_path, use_tpu):
    estimator = estimator_of(model_fn, tmp_path, use_tpu=use_tpu)
    logs = Logs()
    estimator.train(repeated(X, Y), [logs], steps=12, validation=held_out)
    result = estimator.evaluate(held_out)
    assert len(logs.epochs) == 3
    assert logs.epochs[-1].keys() == {"loss", "val_loss", "val_error"}
    assert logs.last == logs.epochs[-1]
    for name in ("loss", "error"):
        values = [each[f"val_{name}"] for each in logs.epochs]
        assert all(isinstance(value, float) for value in values)
        assert values[0] > values[1] > values[2]
        np.testing.assert_allclose(values[-1], result[name], 1e-5)


def test_validation_does_not_change_training(tmp_path):
    kernels = []
    for name, arguments in (("with", {"validation": held_out}), ("out", {})):
        estimator = estimator_of(model_fn, tmp_path / name)
        estimator.train(repeated(X, Y), steps=8, **arguments)
        kernels.append(estimator.get_variable_value("dense/kernel"))
    np.testing.assert_array_equal(*kernels)


def test_epochs_of_several_runs_are_evaluated_once(tmp_path):
    calls = []

    def input_fn(params):
        calls.append(1)
        return held_out(params)

    estimator = estimator_of(model_fn, tmp_path)
    logs = [Logs(), Logs()]
    hooks = [kte.hooks.CallbackHook(each, steps_per_epoch=8) for each in logs]
    estimator.train(repeated(X, Y), hooks, steps=20, validation=input_fn)
    # Evaluations after 8 and 16 steps, and at the end.
    assert len(calls) == 3
    assert [len(each.epochs) for each in logs] == [3, 3]
    assert logs[0].epochs == logs[1].epochs


def test_validation_is_written_without_callbacks(tmp_path):
    estimator = estimator_of(model_fn, tmp_path)
    estimator.train(repeated(X, Y), steps=8, validation=held_out, validation_steps=1)
    results = kte.experimental.read_eval_metrics(estimator.eval_dir())
    assert list(results) == [4, 8]


def test_early_stopping_restores_the_best_weights(tmp_path):
    class Spoil(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                self.model.set_weights(
                    [np.full(w.shape, 9, w.dtype) for w in self.weights()]
                )

        def weights(self):
            return self.model.get_weights()

    stopping = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)
    logs = Logs()
    estimator = estimator_of(model_fn, tmp_path)
    estimator.train(
        repeated(X, Y), [Spoil(), stopping, logs], steps=40, validation=held_out
    )
    assert len(logs.epochs) == 3
    best = estimator.evaluate(held_out)["loss"]
    np.testing.assert_allclose(best, logs.epochs[1]["val_loss"], 1e-5)


class OnDevices:
    """A spec whose Keras metrics are updated on devices."""

    @staticmethod
    def spec(mode, loss, labels, outputs):
        return kte.EstimatorSpec(
            mode, loss=loss, eval_metric_ops=counted(labels, outputs)
        )


class OnTheHost:
    """A spec whose Keras metrics are updated in `metric_fn` on the host."""

    @staticmethod
    def spec(mode, loss, labels, outputs):
        return kte.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(counted, [labels, outputs])
        )


def counted(labels, outputs):
    metrics = {
        "error": keras.metrics.MeanAbsoluteError(),
        "fit": keras.metrics.R2Score(),
    }
    for metric in metrics.values():
        metric.update_state(labels, outputs)
    return metrics


@pytest.mark.parametrize("counting", [OnDevices, OnTheHost])
def test_keras_metrics_have_their_direction(tmp_path, counting):
    def counts(features, labels, mode, params):
        if mode != kte.ModeKeys.EVAL:
            return model_fn(features, labels, mode, params)
        outputs = linear(features, False)
        loss = keras.ops.mean((outputs - labels) ** 2)
        return counting.spec(mode, loss, labels, outputs)

    callbacks = [
        keras.callbacks.EarlyStopping(f"val_{name}") for name in ("error", "fit")
    ]
    estimator = estimator_of(counts, tmp_path)
    estimator.train(repeated(X, Y), callbacks, steps=4, validation=batches_of(X, Y))
    assert [each.monitor_op for each in callbacks] == [
        keras.ops.less,
        keras.ops.greater,
    ]


def test_learning_rate_is_reduced_on_a_plateau(tmp_path):
    estimator = estimator_of(model_fn, tmp_path)
    reduce = keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5, min_delta=1e9)
    estimator.train(repeated(X, Y), [reduce], steps=12, validation=held_out)
    rate = float(reduce.model.optimizer.learning_rate.value)
    assert rate == pytest.approx(0.05 / 4)


@pytest.mark.parametrize(
    ("arguments", "exception", "message"),
    [
        ({"validation": (X, Y)}, TypeError, "must be an input_fn.*tuple"),
        ({"validation_steps": 3}, ValueError, "no `validation`. Also pass"),
        (
            {"validation": held_out, "validation_steps": 0},
            ValueError,
            "validation_steps",
        ),
    ],
)
def test_invalid_arguments_are_refused(tmp_path, arguments, exception, message):
    estimator = estimator_of(model_fn, tmp_path)
    with pytest.raises(exception, match=message):
        estimator.train(repeated(X, Y), steps=4, **arguments)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_model_of_a_callback_evaluates_and_loads(tmp_path, use_tpu):
    class Look(Logs):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            path = str(tmp_path / "first.weights.h5")
            if epoch == 0:
                self.model.save_weights(path)
            self.seen = [
                self.model.evaluate(
                    *HELD_OUT, batch_size=16, verbose=0, return_dict=True
                )
                for _ in range(2)
            ]
            if epoch == 2:
                self.model.load_weights(path)

    look = Look()
    estimator = estimator_of(model_fn, tmp_path / "run", use_tpu=use_tpu)
    estimator.train(repeated(X, Y), [look], steps=12, validation=held_out)
    for seen in look.seen:
        assert seen.keys() == {"loss", "error"}
        for name, value in seen.items():
            expected = look.epochs[-1][f"val_{name}"]
            np.testing.assert_allclose(value, expected, 1e-5)
    # The last checkpoint contains the weights that the callback has loaded.
    result = estimator.evaluate(held_out)
    np.testing.assert_allclose(result["error"], look.epochs[0]["val_error"], 1e-5)
    assert result["global_step"] == 12
