"""Tests `EstimatorModel`, a Keras model with the steps of the device loop."""

import keras
import numpy as np
import pytest
from helpers import estimator_of, linear, model_fn_of, regression_data, repeated

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.mesh.all_cores import all_cores

X, Y = regression_data()


def network(x, is_training):
    x = keras.layers.Dense(8, activation="relu")(x)
    x = keras.layers.BatchNormalization()(x, training=is_training)
    x = keras.layers.Dropout(0.1)(x, training=is_training)
    return keras.layers.Dense(1)(x)


def adam():
    return keras.optimizers.Adam(0.01)


def test_fit_matches_train(tmp_path):
    model_fn = model_fn_of(network, adam)
    estimator = estimator_of(model_fn, tmp_path, seed=3)
    estimator.train(repeated(X, Y), steps=8)
    expected = kte.checkpoints.read(estimator.latest_checkpoint())

    model = kte.EstimatorModel.from_model_fn(model_fn, seed=3)
    history = model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    variables = {v.path: v for v in model.variables}
    variables |= {v.path: v for v in model.optimizer.variables}
    assert variables.keys() - {"adam/learning_rate"} >= expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(
            np.asarray(variables[path].value), value, rtol=1e-5, atol=1e-6
        )
    losses = history.history["loss"]
    assert len(losses) == 2 and losses[1] < losses[0]


def test_fit_on_all_cores_matches_train():
    histories = []
    for cores in ({}, {"cores": all_cores()}):
        model = kte.EstimatorModel.from_model_fn(model_fn_of(linear), seed=3, **cores)
        fitted = model.fit(X, Y, batch_size=16, epochs=3, shuffle=False, verbose=0)
        histories.append(fitted.history["loss"])
    np.testing.assert_allclose(histories[0], histories[1], rtol=1e-5)


def test_evaluate_and_predict_like_keras():
    model = kte.EstimatorModel.from_model_fn(model_fn_of(linear), seed=3)
    model.fit(X, Y, batch_size=16, epochs=50, verbose=0)
    predictions = model.predict(X, batch_size=24, verbose=0)["y"]
    loss = model.evaluate(X, Y, batch_size=24, verbose=0)
    np.testing.assert_allclose(loss, np.mean((predictions - Y) ** 2), 1e-4)


def test_batches_of_a_dataset():
    batches = [(X[i : i + 16], Y[i : i + 16]) for i in range(0, 64, 16)]

    class Dataset(keras.utils.PyDataset):
        def __len__(self):
            return len(batches)

        def __getitem__(self, index):
            return batches[index]

    model = kte.EstimatorModel.from_model_fn(model_fn_of(linear), seed=3)
    model.fit(Dataset(), epochs=2, shuffle=False, verbose=0)
    assert int(model.global_step.value) == 8


def test_iterator_is_not_exhausted():
    def fit():
        batches = ((X, Y) for _ in range(9))
        model.fit(batches, steps_per_epoch=2, shuffle=False, verbose=0)

    model = kte.EstimatorModel.from_model_fn(model_fn_of(linear))
    with pytest.raises(ValueError, match=r"model\.prepare"):
        fit()
    model.prepare(kte.ModeKeys.TRAIN, X, Y)
    model.initialize()
    fit()
    assert int(model.global_step.value) == 2


def test_sample_weights_are_an_error():
    model = kte.EstimatorModel.from_model_fn(model_fn_of(linear))
    with pytest.raises(ValueError, match="among the features"):
        model.fit(X, Y, sample_weight=np.ones(64), verbose=0)


def test_weights_are_saved_and_loaded(tmp_path):
    path = str(tmp_path / "model.weights.h5")
    models = [kte.EstimatorModel.from_model_fn(model_fn_of(linear)) for _ in "ab"]
    for model, epochs in zip(models, (3, 1), strict=True):
        model.fit(X, Y, batch_size=16, epochs=epochs, verbose=0)
    models[0].save_weights(path)
    models[1].load_weights(path)
    for one, other in zip(models[0].variables, models[1].variables, strict=True):
        np.testing.assert_array_equal(one.value, other.value)


@pytest.mark.parametrize("mode", [kte.ModeKeys.TRAIN, kte.ModeKeys.PREDICT])
def test_new_model_loads_weights_after_it_is_built(tmp_path, mode):
    path = str(tmp_path / "model.weights.h5")
    trained = kte.EstimatorModel.from_model_fn(model_fn_of(network))
    trained.fit(X, Y, epochs=2, verbose=0)
    trained.save_weights(path)
    expected = trained.predict(X, verbose=0)["y"]

    model = kte.EstimatorModel.from_model_fn(model_fn_of(network))
    with pytest.raises(ValueError, match="has seen no input.*model.prepare"):
        model.load_weights(path)
    model.prepare(mode, X, Y if mode == kte.ModeKeys.TRAIN else None)
    model.load_weights(path)
    np.testing.assert_allclose(model.predict(X, verbose=0)["y"], expected, 1e-5, 1e-6)


def test_weights_of_another_model_are_refused(tmp_path):
    path = str(tmp_path / "model.weights.h5")
    other = kte.EstimatorModel.from_model_fn(model_fn_of(linear))
    other.fit(X, Y, verbose=0)
    other.save_weights(path)
    model = kte.EstimatorModel.from_model_fn(model_fn_of(network))
    model.prepare(kte.ModeKeys.PREDICT, X)
    with pytest.raises(ValueError, match=r"'dense/kernel' must have.*\(3, 8"):
        model.load_weights(path)
    sizes = kte.EstimatorModel.from_model_fn(
        model_fn_of(lambda x, _: keras.layers.Dense(1, name="other")(x))
    )
    sizes.prepare(kte.ModeKeys.PREDICT, X)
    with pytest.raises(ValueError, match=r"without \['other/kernel', 'other/b"):
        sizes.load_weights(path)


def test_summary_lists_variables_by_scope():
    model = kte.EstimatorModel.from_model_fn(model_fn_of(network, adam))
    with pytest.raises(ValueError, match=r"`summary\(\)`.*model.prepare"):
        model.summary()
    model.fit(X, Y, verbose=0)
    texts = []
    model.summary(print_fn=texts.append, show_trainable=True)
    lines = [line.split() for line in texts[0].splitlines()]
    kernel = lines.index(["kernel", "(3,", "8)", "24", "Y"])
    assert lines[kernel - 1] == ["dense", "32"]
    assert ["moving_mean", "(8,)", "8", "N"] in lines
    assert ["Trainable", "params:", "57", "(228.00", "B)"] in lines
    # Two slots for each trainable weight, the learning rate and the iteration.
    assert ["Optimizer", "params:", "116", "(464.00", "B)"] in lines


def test_compile_refuses_settings_of_model_fn():
    model = kte.EstimatorModel.from_model_fn(model_fn_of(linear))
    with pytest.raises(ValueError, match="must not be compiled.*Leave it"):
        model.compile(optimizer="adam", loss="mse")
    model.fit(X, Y, verbose=0)


def test_unsupported_saves_name_the_call_to_use(tmp_path):
    model = kte.EstimatorModel.from_model_fn(model_fn_of(linear))
    with pytest.raises(NotImplementedError, match="save_weights"):
        model.save(tmp_path / "model.keras")
    with pytest.raises(NotImplementedError, match="export_saved_model.*keras"):
        model.export(tmp_path / "export")
    assert not list(tmp_path.iterdir())


def test_callbacks_see_and_stop_fit():
    class StopBelow(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = logs["loss"] < 1

    model = kte.EstimatorModel.from_model_fn(model_fn_of(linear))
    history = model.fit(X, Y, epochs=100, verbose=0, callbacks=[StopBelow()]).history[
        "loss"
    ]
    assert history[-1] < 1 <= history[-2]


def with_metrics(make_spec):
    """A linear model_fn whose `make_spec` adds metrics."""

    def model_fn(features, labels, mode, params):
        outputs = linear(features, False)
        loss = keras.ops.mean((outputs - labels) ** 2)
        if mode == kte.ModeKeys.EVAL:
            return make_spec(mode, loss, labels, outputs)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.05))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    return model_fn


def on_host(mode, loss, labels, outputs):
    def metric_fn(labels, outputs):
        return {"error": kte.metrics.mean_absolute_error(labels, outputs)}

    metrics = (metric_fn, [labels, outputs])
    return kte.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)


def in_numpy(mode, loss, labels, outputs):
    def metric_fn(labels, outputs):
        mean = keras.metrics.Mean()
        mean.update_state(np.abs(np.asarray(labels) - np.asarray(outputs)))
        return {"error": mean}

    metrics = (metric_fn, [labels, outputs])
    return kte.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)


def on_device(mode, loss, labels, outputs):
    error = kte.metrics.mean_absolute_error(labels, outputs)
    return kte.EstimatorSpec(mode, loss=loss, eval_metric_ops={"error": error})


@pytest.mark.parametrize("make_spec", [on_host, in_numpy, on_device])
def test_eval_metrics_are_keras_metrics(make_spec):
    model = kte.EstimatorModel.from_model_fn(with_metrics(make_spec))
    # The mean must account for the smaller last batch.
    fitted = model.fit(X, Y, epochs=2, validation_data=(X[:40], Y[:40]), verbose=0)
    names = {"loss", "val_loss", "val_error"}
    assert fitted.history.keys() == names
    values = {v.path: np.asarray(v.value) for v in model.variables}
    kernel, bias = values["dense/kernel"], values["dense/bias"]
    expected = np.abs(X[:40] @ kernel + bias - Y[:40]).mean()
    np.testing.assert_allclose(fitted.history["val_error"][-1], expected, 1e-5)
    for _ in range(2):  # Earlier counts are discarded.
        loss, error = model.evaluate(X[:40], Y[:40], verbose=0)
        np.testing.assert_allclose(error, expected, 1e-5)
    logs = model.evaluate(X[:40], Y[:40], verbose=0, return_dict=True)
    assert logs.keys() == {"loss", "error"} and logs["loss"] == loss


def test_metrics_of_one_batch():
    model = kte.EstimatorModel.from_model_fn(with_metrics(on_host))
    logs = model.test_on_batch(X, Y, return_dict=True)
    np.testing.assert_allclose(logs["error"], np.abs(Y).mean(), 1e-5)
