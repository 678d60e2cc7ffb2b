"""Tests Keras callbacks in an estimator's loops against Keras's own loops."""

import csv
import math
import re

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
from keras_tpu_estimator.engine.program.store import VariableStore

X, Y = regression_data()
STEPS = 4  # The steps of a run, and of a pass over the data.


def sgd(**kwargs):
    return keras.optimizers.SGD(0.05, **kwargs)


@pytest.fixture(params=[False, True], ids=["one core", "eight cores"])
def use_tpu(request):
    return request.param


@pytest.fixture
def estimator(tmp_path, use_tpu):
    return estimator_of(model_fn_of(linear, sgd), tmp_path, use_tpu=use_tpu)


def fitted(callbacks, epochs, optimizer=sgd):
    """Fits the same model on the same data with Keras."""
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(1, kernel_initializer="zeros", name="dense"),
        ]
    )
    model.compile(optimizer(), "mse")
    model.fit(
        X,
        Y,
        batch_size=16,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )
    return model


def assert_same_weights(estimator, model):
    for variable in model.trainable_variables:
        value = estimator.get_variable_value(variable.path.split("/", 1)[-1])
        np.testing.assert_allclose(value, variable.numpy(), rtol=1e-4)


def trained(estimator, callbacks, epochs):
    return estimator.train(repeated(X, Y), callbacks, steps=STEPS * epochs)


class Recorder(keras.callbacks.Callback):
    """Records every call, without reading the model."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def set_params(self, params):
        self.calls.append(("set_params",))

    def set_model(self, model):
        self.calls.append(("set_model", type(model).__name__))


def _recording(name):
    def record(self, *args, **kwargs):
        *position, logs = *args, *kwargs.values()
        self.calls.append((name, *position, *sorted(logs or {})))

    return record


for mode in ("train", "test", "predict"):
    for event in ("begin", "batch_begin", "batch_end", "end"):
        setattr(Recorder, f"on_{mode}_{event}", _recording(f"{mode}_{event}"))
for event in ("begin", "end"):
    setattr(Recorder, f"on_epoch_{event}", _recording(f"epoch_{event}"))

START = [("set_params",), ("set_model", "EstimatorModel")]


def test_calls_of_train(estimator):
    recorder = Recorder()
    estimator.train(repeated(X, Y), [recorder], steps=6)
    estimator.train(repeated(X, Y), [recorder], steps=2)
    assert recorder.calls == [
        *START,
        ("train_begin",),
        ("epoch_begin", 0),
        ("train_batch_begin", 0),
        ("train_batch_end", 3, "loss"),
        ("epoch_end", 0, "loss"),
        ("epoch_begin", 1),
        ("train_batch_begin", 0),
        ("train_batch_end", 1, "loss"),
        ("epoch_end", 1, "loss"),
        ("train_end", "loss"),
        *START,
        ("train_begin",),
        ("epoch_begin", 0),
        ("train_batch_begin", 0),
        ("train_batch_end", 1, "loss"),
        ("epoch_end", 0, "loss"),
        ("train_end", "loss"),
    ]


def test_calls_at_the_end_of_the_input(estimator):
    recorder = Recorder()
    estimator.train(batches_of(X, Y), [recorder], steps=9)
    assert [call[0] for call in recorder.calls[2:]] == [
        "train_begin",
        "epoch_begin",
        "train_batch_begin",
        "train_batch_end",
        "epoch_end",
        "train_end",
    ]


def test_calls_of_evaluate(tmp_path, use_tpu):
    def model_fn(features, labels, mode, params):
        outputs = linear(features, False)
        loss = squared_error(outputs, labels)
        if mode == kte.ModeKeys.EVAL:
            return kte.TPUEstimatorSpec(
                mode,
                loss=loss,
                eval_metrics=(
                    lambda y, p: {"mae": kte.metrics.mean_absolute_error(y, p)},
                    [labels, outputs],
                ),
                evaluation_hooks=[recorder],
            )
        op = kte.CrossShardOptimizer(sgd()).minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=op)

    recorder = Recorder()
    estimator = estimator_of(model_fn, tmp_path, use_tpu)
    estimator.train(repeated(X, Y), steps=1)
    estimator.evaluate(batches_of(X, Y))
    # On several cores the four batches are one run.
    batches = [
        call
        for batch in range(1 if use_tpu else 4)
        for call in (
            ("test_batch_begin", batch),
            ("test_batch_end", batch, "loss"),
        )
    ]
    assert recorder.calls == [
        *START,
        ("test_begin",),
        *batches,
        ("test_end", "loss", "mae"),
    ]


def test_calls_of_predict(estimator):
    recorder = Recorder()
    list(estimator.predict(batches_of(X[:24]), hooks=[recorder]))
    assert recorder.calls == [
        *START,
        ("predict_begin",),
        ("predict_batch_begin", 0),
        ("predict_batch_end", 0, "y"),
        ("predict_batch_begin", 1),
        ("predict_batch_end", 1, "y"),
        ("predict_end",),
    ]


@pytest.mark.parametrize(
    "start, steps, epochs",
    [
        # Runs end at 4, 8, 12, 14.
        (0, 14, [(0, 8), (1, 12), (2, 14)]),
        # Resumed training continues the interrupted epoch.
        (14, 6, [(2, 18), (3, 20)]),
        # Runs longer than an epoch.
        (0, 4, [(0, 4)]),
    ],
)
def test_epochs_of_several_runs(tmp_path, start, steps, epochs):
    estimator = estimator_of(model_fn_of(linear, sgd), tmp_path)
    if start:
        estimator.train(repeated(X, Y), steps=start)
    ends = []

    class Ends(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            ends.append((epoch, int(self.model.global_step.value)))

    hook = kte.hooks.CallbackHook(Ends(), steps_per_epoch=6)
    estimator.train(repeated(X, Y), [hook], steps=steps)
    assert ends == epochs


class Counts(keras.callbacks.Callback):
    """Records the numbers that Keras's progress bars use."""

    def __init__(self):
        super().__init__()
        self.epochs, self.batches, self.last = [], [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append((epoch, self.params["epochs"]))

    def on_train_batch_begin(self, batch, logs=None):
        self.batches.append(batch)

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(batch)

    def on_epoch_end(self, epoch, logs=None):
        self.last.append(epoch == self.params["epochs"] - 1)


OPEN = 2**31 - 1


@pytest.mark.parametrize(
    "length, before, given, epochs, batches",
    [
        (8, 0, {"steps": 14}, [(0, 2), (1, 2)], [0, 3, 4, 7, 0, 3, 4, 5]),
        # Resumed training counts the earlier epochs.
        (8, 10, {"max_steps": 20}, [(1, 3), (2, 3)], [2, 5, 6, 9, 2, 3]),
        (None, 4, {"steps": 6}, [(0, 2), (1, 2)], [0, 3, 0, 1]),
        (None, 0, {}, [(0, OPEN), (1, OPEN)], [0, 3, 0, 3]),
    ],
)
def test_number_of_epochs_is_known(tmp_path, length, before, given, epochs, batches):
    estimator = estimator_of(model_fn_of(linear, sgd), tmp_path)
    if before:
        estimator.train(repeated(X, Y), steps=before)
    twice = batches_of(np.tile(X, (2, 1)), np.tile(Y, (2, 1)))
    input_fn = repeated(X, Y) if given else twice
    counts = Counts()
    hook = kte.hooks.CallbackHook(counts, steps_per_epoch=length)
    estimator.train(input_fn, [hook], **given)
    assert (counts.epochs, counts.batches) == (epochs, batches)
    is_known = epochs[0][1] != OPEN
    assert counts.last == [False] * (len(epochs) - 1) + [is_known]


@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_evaluations_and_predictions_have_one_epoch(estimator, call):
    seen = []

    class Params(keras.callbacks.Callback):
        def set_params(self, params):
            seen.append(params["epochs"])

    result = getattr(estimator, call)(batches_of(X, Y), hooks=[Params()])
    assert list(result) and seen == [1]


def test_progress_bars_of_keras(tmp_path, capsys):
    estimator = estimator_of(model_fn_of(linear, sgd), tmp_path)
    bar = keras.callbacks.ProgbarLogger()
    hook = kte.hooks.CallbackHook(bar, steps_per_epoch=8)
    capsys.readouterr()
    estimator.train(repeated(X, Y), [hook], steps=16)
    out = capsys.readouterr().out
    told = re.findall(r"Epoch \d+/\d+|\d+/8\b", out)
    assert told == [
        *("Epoch 1/2", "4/8", "8/8"),
        *("Epoch 2/2", "4/8", "8/8"),
    ]


def test_loss_of_an_epoch_is_the_mean_over_its_steps(tmp_path):
    losses = {"train_batch_end": [], "epoch_end": []}

    class Losses(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            losses["train_batch_end"].append(logs["loss"])

        def on_epoch_end(self, epoch, logs=None):
            losses["epoch_end"].append(logs["loss"])

    estimator = estimator_of(model_fn_of(linear, sgd), tmp_path)
    hook = kte.hooks.CallbackHook([Losses()], steps_per_epoch=100)
    estimator.train(repeated(X, Y), [hook], steps=6)
    first, second = losses["train_batch_end"]
    assert losses["epoch_end"] == [pytest.approx((4 * first + 2 * second) / 6)]
    assert isinstance(first, float)


def stopping():
    # The loss decreases, so with "max" the first epoch stays the best one.
    return keras.callbacks.EarlyStopping(
        "loss", patience=2, mode="max", restore_best_weights=True
    )


@pytest.mark.parametrize("save_steps", [None, 2, 4])
def test_early_stopping(tmp_path, use_tpu, save_steps):
    estimator = estimator_of(
        model_fn_of(linear, sgd),
        tmp_path,
        use_tpu,
        config={"save_checkpoints_steps": save_steps} if save_steps else {},
    )
    trained(estimator, [stopping()], epochs=9)
    assert estimator.get_variable_value("global_step") == 3 * STEPS
    # The restored weights are in the last checkpoint.
    assert_same_weights(estimator, fitted([stopping()], epochs=9))
    in_memory = estimator.evaluate(batches_of(X, Y))
    fresh = estimator_of(model_fn_of(linear, sgd), tmp_path, use_tpu)
    assert fresh.evaluate(batches_of(X, Y)) == in_memory


def reducing():
    return keras.callbacks.ReduceLROnPlateau(
        "loss", factor=0.5, patience=1, min_delta=100.0
    )


def test_reduce_lr_on_plateau(estimator, tmp_path, use_tpu):
    model = fitted([reducing()], epochs=4)
    assert float(model.optimizer.learning_rate.value) == pytest.approx(0.00625)
    trained(estimator, [reducing()], epochs=4)
    assert_same_weights(estimator, model)
    rate = "sgd/learning_rate"
    assert estimator.get_variable_value(rate) == pytest.approx(0.00625)


def test_changed_learning_rate_is_restored(tmp_path):
    model_fn = model_fn_of(linear, sgd)
    estimator = estimator_of(model_fn, tmp_path / "two")
    trained(estimator, [reducing()], epochs=4)
    fresh = estimator_of(model_fn, tmp_path / "two")
    assert "sgd/learning_rate" in fresh.get_variable_names()
    for each in (fresh, estimator):
        trained(each, None, epochs=1)
    expected = estimator_of(model_fn, tmp_path / "expected")
    trained(expected, [reducing()], epochs=4)
    for _ in range(2):
        trained(expected, None, epochs=1)
    for path in ("dense/kernel", "sgd/learning_rate"):
        np.testing.assert_array_equal(
            estimator.get_variable_value(path),
            expected.get_variable_value(path),
        )


def test_unchanged_learning_rate_is_not_saved(estimator):
    trained(estimator, [Recorder(), stopping()], epochs=1)
    assert "sgd/learning_rate" not in estimator.get_variable_names()


def test_learning_rate_scheduler(estimator):
    def scheduler():
        return keras.callbacks.LearningRateScheduler(
            lambda epoch, rate: rate / (1 + epoch)
        )

    trained(estimator, [scheduler()], epochs=3)
    assert_same_weights(estimator, fitted([scheduler()], epochs=3))


def test_csv_logger(estimator, tmp_path):
    def rows(name):
        with open(tmp_path / name) as file:
            return list(csv.DictReader(file))

    def loggers(name):
        # The second callback logs the rate that the first one adds.
        logger = keras.callbacks.CSVLogger(str(tmp_path / name))
        return [reducing(), logger]

    trained(estimator, loggers("ours.csv"), epochs=3)
    fitted(loggers("keras.csv"), epochs=3)
    ours, expected = rows("ours.csv"), rows("keras.csv")
    assert [row["epoch"] for row in ours] == ["0", "1", "2"]
    for row, other in zip(ours, expected, strict=True):
        assert row.keys() == other.keys()
        for name in ("loss", "learning_rate"):
            assert float(row[name]) == pytest.approx(float(other[name]), 1e-4)


def diverging():
    return keras.optimizers.SGD(1e18)


def test_terminate_on_nan_ends_training(tmp_path, use_tpu):
    estimator = estimator_of(model_fn_of(linear, diverging), tmp_path, use_tpu)
    recorder = Recorder()
    trained(estimator, [keras.callbacks.TerminateOnNaN(), recorder], epochs=9)
    names = [call[0] for call in recorder.calls]
    assert names.count("epoch_end") < 9
    assert names[-1] == "train_end"
    # The last checkpoint contains no NaN.
    assert estimator.get_variable_value("global_step") == 0
    assert math.isfinite(estimator.evaluate(batches_of(X, Y))["loss"])


def test_terminate_on_nan_raises_if_configured(tmp_path):
    estimator = estimator_of(model_fn_of(linear, diverging), tmp_path)
    terminate = keras.callbacks.TerminateOnNaN(raise_error=True)
    with pytest.raises(RuntimeError, match="NaN or Inf loss encountered"):
        trained(estimator, [terminate], epochs=9)


def test_nan_stays_an_error_with_other_callbacks(tmp_path):
    estimator = estimator_of(model_fn_of(linear, diverging), tmp_path)
    with pytest.raises(kte.hooks.NanLossDuringTrainingError):
        trained(estimator, [Recorder()], epochs=9)


def test_lambda_callback(estimator):
    losses = []
    trained(
        estimator,
        [
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: losses.append(logs["loss"])
            )
        ],
        epochs=3,
    )
    history = fitted([], epochs=3).history.history["loss"]
    np.testing.assert_allclose(losses, history, rtol=1e-4)


def test_history(estimator):
    history = keras.callbacks.History()
    trained(estimator, [history], epochs=2)
    assert history.epoch == [0, 1]
    expected = fitted([], epochs=2).history.history["loss"]
    np.testing.assert_allclose(history.history["loss"], expected, rtol=1e-4)


def scalars_of(directory, *tags):
    from tensorboard.backend.event_processing.event_accumulator import (
        EventAccumulator,
    )
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(directory)).Reload()
    return [
        [
            (event.step, float(tensor_util.make_ndarray(event.tensor_proto)))
            for event in events.Tensors(tag)
        ]
        for tag in tags
    ]


def test_tensorboard(estimator, tmp_path):
    def board(name):
        return keras.callbacks.TensorBoard(
            str(tmp_path / name), histogram_freq=1, update_freq=1
        )

    trained(estimator, [board("ours")], epochs=2)
    fitted([board("keras")], epochs=2)
    ours, expected = (
        scalars_of(tmp_path / name / "train", "epoch_loss", "epoch_learning_rate")
        for name in ("ours", "keras")
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-4)
    # Runs replace batches.
    (batches,) = scalars_of(tmp_path / "ours" / "train", "batch_loss")
    assert [step for step, _ in batches] == [1, 2]
    result = estimator.evaluate(batches_of(X, Y), hooks=[board("eval")])
    (evaluated,) = scalars_of(
        tmp_path / "eval" / "validation", "evaluation_loss_vs_iterations"
    )
    assert evaluated == [(8, pytest.approx(result["loss"]))]


def averaging():
    return sgd(use_ema=True, ema_momentum=0.5)


def test_swap_ema_weights_around_an_evaluation(tmp_path, use_tpu):
    estimator = estimator_of(model_fn_of(linear, averaging), tmp_path, use_tpu)
    trained(estimator, None, epochs=1)
    kernel = estimator.get_variable_value("sgd/dense_kernel_average")
    bias = estimator.get_variable_value("sgd/dense_bias_average")
    averages = np.mean((X @ kernel + bias - Y) ** 2)
    raw = estimator.evaluate(batches_of(X, Y))["loss"]
    swap = keras.callbacks.SwapEMAWeights()
    swapped = estimator.evaluate(batches_of(X, Y), hooks=[swap])["loss"]
    assert swapped == pytest.approx(averages, rel=1e-4)
    assert raw != pytest.approx(averages, rel=1e-2)
    assert estimator.evaluate(batches_of(X, Y))["loss"] == raw


def test_swap_ema_weights_after_an_evaluation_in_the_same_process(tmp_path):
    # The first trace is in EVAL, so the optimizer has no variables yet.
    estimator = estimator_of(model_fn_of(linear, averaging), tmp_path)
    estimator.evaluate(batches_of(X, Y))
    trained(estimator, None, epochs=1)
    raw = estimator.evaluate(batches_of(X, Y))["loss"]
    swap = keras.callbacks.SwapEMAWeights()
    swapped = estimator.evaluate(batches_of(X, Y), hooks=[swap])["loss"]
    assert abs(swapped - raw) > 1e-2 * raw


def test_swap_ema_weights_needs_an_optimizer(tmp_path):
    estimator = estimator_of(model_fn_of(linear, averaging), tmp_path)
    swap = keras.callbacks.SwapEMAWeights()
    with pytest.raises(AttributeError, match="train first"):
        estimator.evaluate(batches_of(X, Y), hooks=[swap])


def read_weights(path, group="layers/dense"):
    import h5py

    with h5py.File(path) as file:
        found = {}
        file.visititems(
            lambda name, item: (
                found.update({name: item[()]})
                if isinstance(item, h5py.Dataset)
                else None
            )
        )
    return sorted(
        (value.shape, value.ravel().tolist())
        for name, value in found.items()
        if not name.startswith("optimizer") and value.dtype == np.float32
    )


def test_swap_ema_weights_at_each_epoch(tmp_path, use_tpu):
    def callbacks(name):
        return [
            keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
            keras.callbacks.ModelCheckpoint(
                str(tmp_path / name / "{epoch}.weights.h5"),
                save_weights_only=True,
            ),
        ]

    estimator = estimator_of(
        model_fn_of(linear, averaging),
        tmp_path,
        use_tpu,
        config={"save_checkpoints_steps": STEPS},
    )
    trained(estimator, callbacks("ours"), epochs=3)
    model = fitted(callbacks("keras"), epochs=3, optimizer=averaging)
    for epoch in (1, 2, 3):
        for (shape, ours), (_, expected) in zip(
            read_weights(tmp_path / "ours" / f"{epoch}.weights.h5"),
            read_weights(tmp_path / "keras" / f"{epoch}.weights.h5"),
            strict=True,
        ):
            np.testing.assert_allclose(ours, expected, 1e-4, err_msg=shape)
    # As in Keras, the model ends with the averages, which are swapped with the
    # weights between two epochs.
    assert_same_weights(estimator, model)
    raw = fitted([], epochs=2)
    on_the_way = kte.checkpoints.read(str(tmp_path / "model.ckpt-8"))
    kernel = raw.trainable_variables[0].numpy()
    (average,) = (n for n in on_the_way if "average" in n and "kernel" in n)
    np.testing.assert_allclose(on_the_way[average], kernel, rtol=1e-4)


def test_model_checkpoint_of_weights(estimator, tmp_path):
    path = str(tmp_path / "{epoch}-{loss:.0f}.weights.h5")
    checkpoint = keras.callbacks.ModelCheckpoint(
        path, monitor="loss", save_best_only=True, save_weights_only=True
    )
    trained(estimator, [checkpoint], epochs=2)
    losses = fitted([], epochs=2).history.history["loss"]
    names = [f"{i + 1}-{loss:.0f}" for i, loss in enumerate(losses)]
    model = kte.EstimatorModel.from_model_fn(model_fn_of(linear, sgd))
    model.prepare(kte.ModeKeys.EVAL, X, Y)
    model.initialize()
    for epochs, name in enumerate(names, 1):
        model.load_weights(str(tmp_path / f"{name}.weights.h5"))
        expected = fitted([], epochs=epochs).get_weights()
        for value, other in zip(model.get_weights()[:2], expected, strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-4)


def test_model_checkpoint_at_steps(tmp_path):
    estimator = estimator_of(model_fn_of(linear, sgd), tmp_path)
    checkpoint = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "{epoch}-{batch}.weights.h5"),
        save_weights_only=True,
        save_freq=8,
    )
    hook = kte.hooks.CallbackHook(checkpoint, steps_per_epoch=16)
    trained(estimator, [hook], epochs=7)
    files = sorted(path.name for path in tmp_path.glob("*.weights.h5"))
    assert files == [f"{n}.weights.h5" for n in ("1-16", "1-8", "2-8")]


@pytest.mark.parametrize("name", ["model.keras", "model.h5"])
def test_saving_a_complete_model_is_refused(estimator, tmp_path, name):
    checkpoint = keras.callbacks.ModelCheckpoint(str(tmp_path / name))
    with pytest.raises(NotImplementedError, match="save_weights_only=True"):
        trained(estimator, [checkpoint], epochs=1)
    assert not (tmp_path / name).exists()


class Reading(keras.callbacks.Callback):
    """Reads the model after every run, and may change it."""

    def __init__(self, change=lambda model: None):
        super().__init__()
        self.seen, self.change = [], change

    def on_train_batch_end(self, batch, logs=None):
        kernel, bias, step = self.model.get_weights()
        self.seen.append((int(step), kernel))
        assert int(self.model.optimizer.inner_optimizer.iterations.value) == step
        self.change(self.model)


def test_model_has_the_weights_of_the_run(estimator):
    looking = Reading()
    trained(estimator, [looking], epochs=3)
    for epochs, (step, kernel) in enumerate(looking.seen, 1):
        assert step == STEPS * epochs
        expected = fitted([], epochs=epochs).get_weights()[0]
        np.testing.assert_allclose(kernel, expected, rtol=1e-4)
    np.testing.assert_array_equal(
        looking.model.get_weights()[0],
        estimator.get_variable_value("dense/kernel"),
    )


def test_training_continues_with_assigned_values(estimator):
    def restart(model):
        if int(model.global_step.value) == STEPS:
            model.set_weights([w * 0 for w in model.get_weights()])

    values = []

    class Fetching(kte.hooks.SessionRunHook):
        def after_run(self, run_context, run_values):
            session = run_context.session
            values.append(session.run(["global_step", "dense/kernel"]))

    trained(estimator, [Reading(restart), Fetching()], epochs=2)
    assert [int(step) for step, _ in values] == [4, 8]
    np.testing.assert_array_equal(values[0][1], np.zeros((3, 1)))
    assert_same_weights(estimator, fitted([], epochs=1))
    # The loop counts steps independently of assigned values.
    assert estimator.get_variable_value("global_step") == 8


def test_one_value_for_two_variables_is_copied(estimator):
    def share(model):
        bias, average = (
            v
            for v in (*model.variables, *model.optimizer.variables)
            if v.path in ("dense/bias", "sgd/dense_bias_momentum")
        )
        average.assign(bias)

    momentum = model_fn_of(linear, lambda: sgd(momentum=0.9))
    estimator = estimator_of(momentum, estimator.model_dir)
    trained(estimator, [Reading(share)], epochs=3)
    np.testing.assert_array_equal(
        estimator.get_variable_value("dense/bias"),
        estimator.get_variable_value("sgd/dense_bias_momentum"),
    )


def test_weights_loaded_at_the_beginning(tmp_path):
    source = kte.EstimatorModel.from_model_fn(model_fn_of(linear, sgd))
    source.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    path = str(tmp_path / "source.weights.h5")
    source.save_weights(path)

    class Load(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.load_weights(path)

    estimator = estimator_of(model_fn_of(linear, sgd), tmp_path / "model")
    trained(estimator, [Load()], epochs=1)
    assert_same_weights(estimator, fitted([], epochs=3))
    assert estimator.get_variable_value("global_step") == STEPS


@pytest.mark.parametrize("mode", ["test", "predict"])
def test_evaluate_and_predict_use_assigned_values_only_once(estimator, mode):
    trained(estimator, None, epochs=1)

    class Zero(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            self.model.set_weights([w * 0 for w in self.model.get_weights()])

        on_predict_begin = on_test_begin

    def run(hooks=None):
        if mode == "test":
            return estimator.evaluate(batches_of(X, Y), hooks=hooks)["loss"]
        rows = estimator.predict(batches_of(X), hooks=hooks)
        return np.array([row["y"] for row in rows])

    before = run()
    expected = np.mean(Y**2) if mode == "test" else np.zeros((64, 1))
    np.testing.assert_allclose(run([Zero()]), expected, rtol=1e-5)
    np.testing.assert_array_equal(run(), before)


@pytest.mark.parametrize(
    "event, runs",
    [
        ("on_train_batch_end", 1),
        ("on_epoch_end", 1),
        ("on_train_begin", 1),
        ("on_epoch_begin", 1),
        ("on_test_batch_end", 1),
        ("on_predict_batch_end", 1),
    ],
)
def test_callback_may_stop_training(tmp_path, event, runs):
    class Stop(Recorder):
        set_model = keras.callbacks.Callback.set_model

    def stop(self, *args):
        self.model.stop_training = True
        self.model.stop_evaluating = True
        self.model.stop_predicting = True

    setattr(Stop, event, stop)
    recorder = Recorder()
    hooks = [Stop(), recorder]
    estimator = estimator_of(model_fn_of(linear, sgd), tmp_path)
    if "predict" in event:
        assert len(list(estimator.predict(batches_of(X), hooks=hooks))) == 16
    elif "test" in event:
        estimator.evaluate(repeated(X, Y), steps=99, hooks=hooks)
    else:
        estimator.train(repeated(X, Y), hooks, steps=99)
        assert estimator.get_variable_value("global_step") == STEPS
    names = [name for name, *_ in recorder.calls]
    assert sum(name.endswith("batch_end") for name in names) == runs
    assert names[-1].endswith("_end")


def test_training_inside_predict(estimator):
    # Two loops are active, and callbacks of both read the model.
    class ReadingToo(Reading):
        on_predict_batch_end = Reading.on_train_batch_end

    trained(estimator, None, epochs=1)
    looking, training = ReadingToo(), Reading()
    for _ in estimator.predict(
        batches_of(X), hooks=[looking], yield_single_examples=False
    ):
        trained(estimator, [training], epochs=1)
    assert [step for step, _ in looking.seen] == [4] * 4
    assert [step for step, _ in training.seen] == [8, 12, 16, 20]


def test_evaluating_inside_a_callback(estimator):
    estimators = [estimator]

    class Evaluate(Reading):
        def on_epoch_end(self, epoch, logs=None):
            kernel = self.model.get_weights()[0]
            estimators[0].evaluate(batches_of(X, Y), hooks=[ReadingToo()])
            np.testing.assert_array_equal(kernel, self.model.get_weights()[0])

    class ReadingToo(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            self.model.set_weights([w * 0 for w in self.model.get_weights()])

    trained(estimator, [Evaluate()], epochs=2)
    assert_same_weights(estimator, fitted([], epochs=2))


def test_values_are_copied_only_for_callbacks_that_read_them(estimator, monkeypatch):
    assigned = []
    assign = VariableStore.assign
    monkeypatch.setattr(
        VariableStore,
        "assign",
        lambda store, values: assigned.append(1) or assign(store, values),
    )
    trained(estimator, [keras.callbacks.History()], epochs=5)
    # `History` reads its model at the start and end of each epoch. The model is also
    # read at the end of training.
    counted = len(assigned)
    assigned.clear()
    trained(estimator, [Recorder()], epochs=5)
    assert len(assigned) == 1 < counted


def test_callbacks_of_the_spec(tmp_path, use_tpu):
    recorder = Recorder()

    def model_fn(features, labels, mode, params):
        spec = model_fn_of(linear, sgd)(features, labels, mode, params)
        return kte.TPUEstimatorSpec(
            mode,
            spec.predictions,
            spec.loss,
            spec.train_op,
            training_hooks=[stopping(), recorder],
            prediction_hooks=(recorder,),
        )

    estimator = estimator_of(model_fn, tmp_path, use_tpu)
    for _ in range(2):
        trained(estimator, None, epochs=9)
    assert estimator.get_variable_value("global_step") == 6 * STEPS
    list(estimator.predict(batches_of(X)))
    names = [name for name, *_ in recorder.calls]
    assert names.count("train_end") == 2
    assert names.count("predict_end") == 1


def test_several_optimizers(tmp_path):
    def model_fn(features, labels, mode, params):
        hidden = keras.layers.Dense(4, name="hidden")(features)
        outputs = keras.layers.Dense(1, name="out")(hidden)
        loss = squared_error(outputs, labels)
        first, second = kte.trainable_variables()[:2], None
        second = kte.trainable_variables()[2:]
        ops = [
            kte.CrossShardOptimizer(keras.optimizers.SGD(0.01, name="one")).minimize(
                loss, var_list=first
            ),
            kte.CrossShardOptimizer(keras.optimizers.Adam(0.02, name="two")).minimize(
                loss, var_list=second
            ),
        ]
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=ops)

    estimator = estimator_of(model_fn, tmp_path)
    trained(estimator, [reducing()], epochs=3)
    for path, rate in (("one", 0.0025), ("two", 0.005)):
        value = estimator.get_variable_value(f"{path}/learning_rate")
        assert value == pytest.approx(rate)
    looking = keras.callbacks.History()
    trained(estimator, [looking], epochs=1)
    with pytest.raises(AttributeError, match="several optimizers"):
        _ = looking.model.optimizer.learning_rate


@pytest.mark.parametrize(
    "rate, error",
    [
        (lambda: kte.get_global_step() * 0.0 + 0.1, ValueError),
        (keras.optimizers.schedules.CosineDecay(0.1, 99), TypeError),
    ],
)
def test_learning_rate_must_be_a_number(tmp_path, rate, error):
    model_fn = model_fn_of(linear, lambda: keras.optimizers.SGD(rate))
    estimator = estimator_of(model_fn, tmp_path)
    board = keras.callbacks.TensorBoard(str(tmp_path / "board"))
    trained(estimator, [board], epochs=1)
    tag = "epoch_learning_rate"
    if error is TypeError:
        (logged,) = scalars_of(tmp_path / "board" / "train", tag)
        assert logged == [(0, pytest.approx(float(rate(4))))]
    with pytest.raises(error, match="earning rate|learning_rate"):
        trained(estimator, [reducing()], epochs=3)


def test_schedule_does_not_replace_a_number(tmp_path):
    def schedule(model):
        model.optimizer.learning_rate = keras.optimizers.schedules.CosineDecay(0.1, 9)

    estimator = estimator_of(model_fn_of(linear, sgd), tmp_path)
    with pytest.raises(TypeError, match="set to a number"):
        trained(estimator, [Reading(schedule)], epochs=1)


def test_callbacks_change_the_learning_rate_in_fit():
    model = kte.EstimatorModel.from_model_fn(model_fn_of(linear, sgd))
    model.fit(
        X,
        Y,
        batch_size=16,
        epochs=4,
        shuffle=False,
        verbose=0,
        callbacks=[reducing()],
    )
    expected = fitted([reducing()], epochs=4).get_weights()
    for value, other in zip(model.get_weights()[:2], expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (("callback",), TypeError, "must be keras.callbacks.Callback"),
        (([kte.hooks.SessionRunHook()],), TypeError, "Callback objects"),
        ((stopping(), 0), ValueError, "steps_per_epoch"),
        ((stopping(), 1.5), TypeError, "steps_per_epoch"),
    ],
)
def test_arguments_of_a_callback_hook(arguments, error, message):
    with pytest.raises(error, match=message):
        kte.hooks.CallbackHook(*arguments)


def test_callback_class_is_refused(estimator):
    with pytest.raises(TypeError, match="or keras.callbacks.Callback"):
        trained(estimator, [keras.callbacks.History], epochs=1)


def test_callbacks_and_hooks_are_called_in_the_order_given(estimator):
    order = []

    class Hook(kte.hooks.SessionRunHook):
        def __init__(self, name):
            self.name = name

        def after_run(self, run_context, run_values):
            order.append(self.name)

        def end(self, session):
            order.append(f"end {self.name}")

    def callback(name):
        return keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: order.append(name),
            on_train_end=lambda logs: order.append(f"end {name}"),
        )

    hooks = [Hook("a"), callback("b"), Hook("c"), callback("d")]
    trained(estimator, hooks, epochs=1)
    # All callbacks are one hook, which ends before the last checkpoint.
    assert order == ["a", "b", "d", "c", "end b", "end d", "end a", "end c"]
