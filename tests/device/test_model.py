"""`EstimatorModel`: a Keras model with the steps of the device loop."""

import keras
import numpy as np
import pytest
from helpers import estimator_of
from helpers import linear
from helpers import model_fn_of
from helpers import regression_data
from helpers import repeated

import keras_tpu_estimator as kte
from keras_tpu_estimator.mesh.cores import all_cores

X, Y = regression_data()


def network(x, is_training):
    x = keras.layers.Dense(8, activation="relu")(x)
    x = keras.layers.BatchNormalization()(x, training=is_training)
    x = keras.layers.Dropout(0.1)(x, training=is_training)
    return keras.layers.Dense(1)(x)


def adam():
    return keras.optimizers.Adam(0.01)


def test_fit_gives_the_numbers_of_train(tmp_path):
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


def test_fit_over_all_cores_gives_the_same_numbers():
    histories = []
    for cores in ({}, {"cores": all_cores()}):
        model = kte.EstimatorModel.from_model_fn(
            model_fn_of(linear), seed=3, **cores
        )
        fitted = model.fit(
            X, Y, batch_size=16, epochs=3, shuffle=False, verbose=0
        )
        histories.append(fitted.history["loss"])
    np.testing.assert_allclose(histories[0], histories[1], rtol=1e-5)


def test_evaluate_and_predict_as_keras_does():
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


def test_an_iterator_is_not_used_up():
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
    models = [
        kte.EstimatorModel.from_model_fn(model_fn_of(linear)) for _ in "ab"
    ]
    for model, epochs in zip(models, (3, 1), strict=True):
        model.fit(X, Y, batch_size=16, epochs=epochs, verbose=0)
    models[0].save_weights(path)
    models[1].load_weights(path)
    for one, other in zip(
        models[0].variables, models[1].variables, strict=True
    ):
        np.testing.assert_array_equal(one.value, other.value)


def test_summary_counts_parameters(capsys):
    model = kte.EstimatorModel.from_model_fn(model_fn_of(linear))
    model.fit(X, Y, verbose=0)
    lines = []
    model.summary(print_fn=lambda line, line_break=False: lines.append(line))
    assert "Trainable params: 4" in "\n".join(lines)


def test_callbacks_see_and_stop_fit():
    class StopBelow(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = logs["loss"] < 1

    model = kte.EstimatorModel.from_model_fn(model_fn_of(linear))
    history = model.fit(
        X, Y, epochs=100, verbose=0, callbacks=[StopBelow()]
    ).history["loss"]
    assert history[-1] < 1 <= history[-2]
