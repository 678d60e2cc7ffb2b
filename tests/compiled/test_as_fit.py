"""Tests that input, metrics and files of `from_keras` match Keras's `fit`."""

import json
import os

import keras
import numpy as np
import pytest
from helpers import slow
from keras import layers

import keras_tpu_estimator as kte

EXAMPLES, BATCH, EPOCHS = 32, 8, 3
STEPS = EXAMPLES // BATCH
RNG = np.random.default_rng(1)
X = RNG.normal(size=(EXAMPLES, 3)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) > 0).astype("float32")
WEIGHTS = RNG.uniform(size=EXAMPLES).astype("float32")


@keras.saving.register_keras_serializable("as_fit")
class Positives(keras.metrics.Metric):
    """A metric of a user."""

    def __init__(self, name="positives", **kwargs):
        super().__init__(name=name, **kwargs)
        self.seen = self.add_weight(initializer="zeros", name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        positive = keras.ops.cast(y_pred > 0.5, "float32")
        self.seen.assign_add(keras.ops.sum(positive))

    def result(self):
        return self.seen * 1.0


def compiled(optimizer="adam", loss="binary_crossentropy"):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((3,), name="x"),
            layers.Dense(4, "tanh", name="hidden"),
            layers.BatchNormalization(name="norm"),
            layers.Dropout(0.0),
            layers.Dense(1, "sigmoid", name="y"),
        ],
        name="m",
    )
    model.compile(
        optimizer,
        loss,
        metrics=["accuracy", Positives()],
        weighted_metrics=[keras.metrics.AUC(name="auc")],
    )
    return model


def estimator_of(model, iterations=2, use_tpu=False, **kwargs):
    sizes = ("train_batch_size", "eval_batch_size", "predict_batch_size")
    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(iterations_per_loop=iterations),
        log_step_count_steps=STEPS,
    )
    arguments = {"config": config, "use_tpu": use_tpu}
    return kte.from_keras(model, **arguments | dict.fromkeys(sizes, BATCH) | kwargs)


def slices(*arrays):
    for start in range(0, EXAMPLES, BATCH):
        rows = slice(start, start + BATCH)
        yield tuple(array[rows] for array in arrays)


def generated(*arrays):
    def input_fn(params):
        while True:
            yield from slices(*arrays)

    return input_fn


def tf_data(*arrays):
    def input_fn(params):
        import tensorflow as tf

        dataset = tf.data.Dataset.from_tensor_slices(arrays)
        return dataset.batch(params["batch_size"]).repeat()

    return input_fn


def fit(model, *data, **kwargs):
    arguments = {"shuffle": False, "verbose": 0}
    return model.fit(*data, BATCH, EPOCHS, **arguments | kwargs).history


def train(estimator, input_fn, *callbacks):
    history = keras.callbacks.History()
    hook = kte.hooks.CallbackHook([history, *callbacks], steps_per_epoch=STEPS)
    estimator.train(input_fn, hooks=[hook], steps=EPOCHS * STEPS)
    return history.history


def assert_same(got, expected, rtol=1e-6):
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, rtol, err_msg=name)


def assert_same_weights(estimator, model, rtol=1e-6):
    for variable in model.weights:
        if not variable.path.endswith("seed_generator_state"):
            np.testing.assert_allclose(
                estimator.get_variable_value(variable.path),
                variable.numpy(),
                rtol,
                1e-6,
                err_msg=variable.path,
            )


@pytest.mark.parametrize("input_of", [generated, tf_data])
def test_triples(input_of):
    model, estimator = compiled(), estimator_of(compiled())
    expected = fit(model, X, Y, sample_weight=WEIGHTS)
    assert_same(train(estimator, input_of(X, Y, WEIGHTS)), expected)
    assert_same_weights(estimator, model)
    result = estimator.evaluate(input_of(X, Y, WEIGHTS), steps=STEPS)
    del result["global_step"]
    data = {"sample_weight": WEIGHTS, "return_dict": True}
    assert_same(result, model.evaluate(X, Y, BATCH, verbose=0, **data))
    rows = [r["y"] for r in estimator.predict(lambda params: slices(X, Y, WEIGHTS))]
    np.testing.assert_allclose(rows, model.predict(X, verbose=0), 1e-5)


def test_arrays_as_a_triple_and_without_weights():
    rows = slice(0, BATCH)
    triple = (X[rows], Y[rows], WEIGHTS[rows])
    model, estimator = compiled(), estimator_of(compiled())
    first = estimator.evaluate(lambda params: triple, steps=1)
    expected = model.evaluate(
        *triple[:2], sample_weight=triple[2], verbose=0, return_dict=True
    )
    del first["global_step"]
    assert_same(first, expected)
    pair = estimator.evaluate(lambda params: (*triple[:2], None), steps=1)
    assert pair == estimator.evaluate(lambda params: triple[:2], steps=1)


def _two_outputs():
    keras.utils.set_random_seed(1)
    inputs = keras.Input(X.shape[1:], name="x")
    outputs = [layers.Dense(1, name=name)(inputs) for name in "ba"]
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"a": "mse", "b": "mae"}, weighted_metrics={"a": ["mae"]})
    return model


@pytest.mark.parametrize("labels", [[Y, 2 * Y], {"b": Y, "a": 2 * Y}])
def test_weights_by_the_names_of_listed_outputs(labels):
    weights = [WEIGHTS, WEIGHTS**2]
    data = {"sample_weight": weights, "return_dict": True, "verbose": 0}
    expected = _two_outputs().evaluate(X, [Y, 2 * Y], EXAMPLES, **data)
    named = dict(zip("ba", weights, strict=True))
    estimator = estimator_of(_two_outputs(), eval_batch_size=EXAMPLES)
    result = estimator.evaluate(lambda params: (X, labels, named), steps=1)
    assert result["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    with pytest.raises(ValueError, match=r"\['a', 'b'\]\. Received: \['a'\]"):
        estimator.evaluate(lambda params: (X, labels, {"a": WEIGHTS}), steps=1)


def test_other_model_fns_refuse_triples():
    def model_fn(features, labels, mode, params):
        raise AssertionError

    estimator = kte.TPUEstimator(
        model_fn, config=kte.RunConfig(), train_batch_size=BATCH, use_tpu=False
    )
    with pytest.raises(ValueError, match=r"length 3\. Put weights .*features"):
        estimator.train(generated(X, Y, WEIGHTS), steps=1)


def classes(labels):
    """A model of labels of any kind, whose loss is weighted."""
    keras.utils.set_random_seed(3)
    outputs = labels.shape[1] if labels.ndim == 2 else 2
    loss = "mse" if labels.ndim == 2 else "sparse_categorical_crossentropy"
    layer = layers.Dense(outputs, "sigmoid", name="y")
    model = keras.Sequential([keras.Input((3,)), layer], name="m")
    model.compile("adam", loss, weighted_metrics=["accuracy"])
    return model


@pytest.mark.parametrize(
    "labels",
    [
        Y,
        Y[:, 0].astype("int32"),
        Y[:, 0].astype(bool),
        slow(np.concatenate([1 - Y, Y], axis=1)),
    ],
)
def test_class_weight(labels):
    weights = {0: 1, 1: 2.5}
    model = classes(labels)
    estimator = estimator_of(classes(labels), class_weight=weights)
    expected = fit(model, X, labels, class_weight=weights)
    assert_same(train(estimator, generated(X, labels)), expected)
    assert_same_weights(estimator, model)


@pytest.mark.parametrize(
    ("class_weight", "error", "message"),
    [
        ([1, 2], TypeError, "must be a dict from classes"),
        ({0.5: 2}, TypeError, "must be a dict from classes"),
    ],
)
def test_invalid_class_weights_are_refused(class_weight, error, message):
    with pytest.raises(error, match=message):
        estimator_of(compiled(), class_weight=class_weight)


def test_class_weight_and_weights():
    estimator = estimator_of(compiled(), class_weight={1: 2})
    with pytest.raises(ValueError, match="Received both.*Multiply"):
        estimator.train(generated(X, Y, WEIGHTS), steps=1)


@pytest.mark.parametrize(
    ("iterations", "use_tpu"), [(1, False), (STEPS, False), (2, True)]
)
def test_metrics_of_epochs(iterations, use_tpu, tmp_path):
    estimator = estimator_of(compiled("sgd"), iterations, use_tpu)
    log = tmp_path / "log.csv"
    got = train(estimator, generated(X, Y), keras.callbacks.CSVLogger(str(log)))
    assert log.read_text().startswith("epoch,accuracy,auc,loss,positives")
    if not use_tpu:
        assert_same(got, fit(compiled("sgd"), X, Y))
    else:
        assert got.keys() == {"accuracy", "auc", "loss", "positives"}
        # A count over all cores that restarts at zero in each epoch.
        assert all(0 < n <= EXAMPLES for n in got["positives"])


def test_epochs_where_hooks_end_the_loops():
    """The loss of an epoch is a mean, independently of other hooks' `loss`."""
    estimator = kte.from_keras(compiled(), use_tpu=False, train_batch_size=BATCH)
    assert_same(train(estimator, generated(X, Y)), fit(compiled(), X, Y))


class CrashAfter(kte.hooks.SessionRunHook):
    """Interrupts training in the middle of an epoch."""

    def __init__(self, step):
        self.step = step

    def before_run(self, run_context):
        if run_context.session.run("global_step") == self.step:
            raise ZeroDivisionError


@pytest.mark.parametrize("is_concrete", [False, True])
def test_metrics_of_an_interrupted_epoch(tmp_path, is_concrete):
    """The counts of half an epoch are restored with the checkpoint."""

    def trained(name, crash=None):
        def metric_fn(labels, outputs):
            if is_concrete:
                labels = np.array(labels)
            return {"error": kte.metrics.mean_absolute_error(labels, outputs)}

        def model_fn(features, labels, mode, params):
            outputs = layers.Dense(1, kernel_initializer="ones")(features)
            loss = keras.ops.mean((outputs - labels) ** 2)
            return kte.TPUEstimatorSpec(
                mode,
                loss=loss,
                train_op=kte.minimize(keras.optimizers.SGD(0.1), loss),
                train_metrics=(metric_fn, [labels, outputs]),
            )

        history = keras.callbacks.History()
        hooks = [kte.hooks.CallbackHook([history], steps_per_epoch=STEPS)]
        hooks += [] if crash is None else [CrashAfter(crash)]
        estimator = kte.TPUEstimator(
            model_fn,
            model_dir=str(tmp_path / name),
            config=kte.RunConfig(
                tpu_config=kte.TPUConfig(iterations_per_loop=1),
                save_checkpoints_steps=3,
                tf_random_seed=1,
            ),
            train_batch_size=BATCH,
            use_tpu=False,
        )
        estimator.train(generated(X, Y), hooks=hooks, max_steps=2 * STEPS)
        return history.history

    expected = trained("straight")
    with pytest.raises(ZeroDivisionError):
        trained("again", crash=3)
    assert_same(trained("again"), expected)
    assert "error" in expected


def test_metrics_in_reports():
    estimator = estimator_of(compiled())
    expected = train(estimator, generated(X, Y))
    with open(f"{estimator.model_dir}/metrics.jsonl") as file:
        *reports, last = [json.loads(line) for line in file]
    assert last.items() >= {**reports[-1], "time": last["time"]}.items()
    for name in ("accuracy", "auc", "positives"):
        assert [report[name] for report in reports] == expected[name]


def test_metrics_that_need_concrete_values(caplog):
    def on_host(y_true, y_pred):
        return float(np.mean(np.asarray(y_true) - np.asarray(y_pred)))

    model = keras.Sequential([keras.Input((3,)), layers.Dense(1, name="y")])
    model.compile("sgd", "mse", metrics=[on_host])
    estimator = estimator_of(model)
    assert set(train(estimator, generated(X, Y))) == {"loss"}
    assert "Training does not log the metrics of `compile`" in caplog.text


def test_keras_model_loads_files_of_model_checkpoint(tmp_path):
    weights, whole = tmp_path / "{epoch}.weights.h5", tmp_path / "{epoch}.keras"
    estimator, model = estimator_of(compiled()), compiled()
    callbacks = [
        keras.callbacks.ModelCheckpoint(str(weights), save_weights_only=True),
        keras.callbacks.ModelCheckpoint(str(whole)),
    ]
    train(estimator, generated(X, Y), *callbacks)
    fit(model, X, Y)
    restored = compiled()
    restored.optimizer.build(restored.trainable_variables)
    restored.load_weights(str(weights).format(epoch=EPOCHS))
    loaded = keras.models.load_model(str(whole).format(epoch=EPOCHS))
    assert_same_weights(estimator, restored, rtol=0)
    for one, other in zip(loaded.get_weights(), restored.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    # The files also contain the optimizer's state.
    expected = fit(model, X, Y)
    for other in (restored, loaded):
        assert_same(fit(other, X, Y), expected, 1e-5)


def test_callbacks_load_their_files(tmp_path):
    path = str(tmp_path / "best.weights.h5")

    class Back(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                self.model.save_weights(path)
            else:
                self.model.load_weights(path)

    estimator, model = estimator_of(compiled("sgd")), compiled("sgd")
    train(estimator, generated(X, Y), Back())
    model.fit(X, Y, BATCH, shuffle=False, verbose=0)
    assert_same_weights(estimator, model)


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
def test_export_without_features(ending, tmp_path):
    estimator, model = estimator_of(compiled()), compiled()
    train(estimator, generated(X, Y))
    path = kte.export_keras(estimator, str(tmp_path / f"m{ending}"))
    if ending == ".keras":
        loaded = keras.models.load_model(path)
        assert loaded.compiled
    else:
        loaded = compiled()
        loaded.optimizer.build(loaded.trainable_variables)
        loaded.load_weights(path)
    fit(model, X, Y)
    assert_same(fit(loaded, X, Y), fit(model, X, Y), 1e-5)


def test_export_of_a_model_that_a_file_cannot_compile(tmp_path, caplog):
    def local_loss(y_true, y_pred):
        return keras.ops.mean((y_true - y_pred) ** 2, axis=-1)

    model = keras.Sequential([keras.Input((3,)), layers.Dense(1, name="y")])
    model.compile("sgd", local_loss)
    estimator = estimator_of(model)
    estimator.train(generated(X, Y), steps=1)
    path = kte.export_keras(estimator, str(tmp_path / "m.keras"))
    assert not keras.models.load_model(path).compiled
    assert "is not compiled, because a file cannot contain" in caplog.text


def test_other_exports_need_features(tmp_path):
    def model_fn(features, labels, mode, params):
        raise AssertionError

    estimator = kte.TPUEstimator(
        model_fn, config=kte.RunConfig(), train_batch_size=BATCH, use_tpu=False
    )
    with pytest.raises(ValueError, match="`features` must be given"):
        kte.export_keras(estimator, str(tmp_path / "m.keras"))


def test_estimator_models_fit_like_keras():
    model = kte.EstimatorModel.from_model_fn(estimator_of(compiled()).model_fn)
    data = {"shuffle": False, "verbose": 0, "sample_weight": WEIGHTS}
    data["validation_data"] = (X, Y, WEIGHTS)
    got = model.fit(X, Y, batch_size=BATCH, epochs=EPOCHS, **data).history
    assert_same(got, fit(compiled(), X, Y, **data), 1e-5)


def test_dtype_policy_without_effect_warns():
    config = kte.RunConfig(dtype_policy="mixed_bfloat16")
    estimator = estimator_of(compiled(), config=config)
    with pytest.warns(UserWarning, match="'mixed_bfloat16'.*has no effect"):
        estimator.train(generated(X, Y), steps=1)


def monitors(folder):
    """Callbacks that must determine whether a metric should increase."""
    return [
        keras.callbacks.EarlyStopping("accuracy", patience=1),
        keras.callbacks.ReduceLROnPlateau("auc", patience=1, factor=0.5),
        keras.callbacks.ModelCheckpoint(
            f"{folder}/{{epoch}}.weights.h5",
            "accuracy",
            save_best_only=True,
            save_weights_only=True,
        ),
    ]


def test_callbacks_find_the_direction_of_metrics(tmp_path):
    made = []
    for name in ("fit", "train"):
        callbacks = monitors(tmp_path / name)
        if name == "fit":
            history = compiled().fit(
                X, Y, BATCH, 20, verbose=0, callbacks=callbacks, shuffle=False
            )
        else:
            history = keras.callbacks.History()
            estimator_of(compiled(), STEPS, True).train(
                generated(X, Y), [*callbacks, history], steps=20 * STEPS
            )
        made.append((history.epoch, sorted(os.listdir(tmp_path / name))))
        assert callbacks[0].monitor_op is keras.ops.greater
    assert made[0] == made[1]
    assert len(made[0][0]) < 20


def test_callbacks_find_the_direction_by_other_names_and_of_validation():
    stopping = [keras.callbacks.EarlyStopping(name) for name in ("acc", "val_acc")]
    mae = keras.callbacks.EarlyStopping("val_mae")
    model = compiled()
    model.compile("adam", "mse", metrics=["accuracy", "mae"])
    estimator = estimator_of(model, metric_names_map={"accuracy": "acc"})
    estimator.train(
        generated(X, Y),
        [*stopping, mae],
        steps=STEPS,
        validation=lambda params: (X, Y),
    )
    assert {each.monitor_op for each in stopping} == {keras.ops.greater}
    assert mae.monitor_op is keras.ops.less


def test_metrics_without_a_direction_need_a_mode():
    stopping = keras.callbacks.EarlyStopping("positives")
    with pytest.raises(ValueError, match="Pass `mode='max'`"):
        estimator_of(compiled()).train(generated(X, Y), [stopping], steps=4)
    with pytest.raises(ValueError, match="Pass `mode='max'`"):
        compiled().fit(X, Y, verbose=0, callbacks=[stopping])


def test_estimator_model_has_the_direction_in_fit():
    estimator = estimator_of(compiled())
    model = kte.EstimatorModel.from_model_fn(estimator.model_fn)
    stopping = keras.callbacks.EarlyStopping("val_accuracy", patience=1)
    history = model.fit(
        X,
        Y,
        epochs=20,
        verbose=0,
        callbacks=[stopping],
        validation_data=(X, Y),
    )
    assert stopping.monitor_op is keras.ops.greater
    assert history.history["val_accuracy"][0] <= 1
    assert model.evaluate(X, Y, verbose=0, return_dict=True).keys() == {
        *("loss", "accuracy", "positives", "auc")
    }


class UsesLayers(keras.callbacks.Callback):
    """Uses the model as in `fit`."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        model = self.model
        names = [each.name for each in model.layers if "dropout" not in each.name]
        kernel = model.get_layer("hidden").kernel.numpy()
        called = np.asarray(model(X, training=False))
        inner = keras.Model(model.layers[0].input, model.get_layer("norm").output)
        normalized = inner.predict(X, verbose=0)
        self.seen.append([names, kernel, called, normalized])
        self.seen[-1] += [model.predict(X, verbose=0), model.predict_on_batch(X)]
        bias = model.get_layer("hidden").bias
        bias.assign(bias + 1)
        model.get_layer("y").set_weights([np.ones((4, 1)), np.full(1, 0.5)])


def test_callbacks_use_the_layers_of_the_model():
    got, expected = UsesLayers(), UsesLayers()
    fit(compiled("sgd"), X, Y, callbacks=[expected])
    train(estimator_of(compiled("sgd")), generated(X, Y), got)
    for one, other in zip(got.seen, expected.seen, strict=True):
        assert one[0][-3:] == other[0][-3:] == ["hidden", "norm", "y"]
        for values, same in zip(one[1:], other[1:], strict=True):
            np.testing.assert_allclose(values, same, 1e-4, 1e-5)


@pytest.mark.parametrize(
    "use", [lambda m: m(X), lambda m: m.get_layer("hidden")], ids=["call", "get_layer"]
)
def test_callbacks_of_a_model_fn_have_no_layers(use):
    def model_fn(features, labels, mode, params):
        loss = keras.ops.mean((layers.Dense(1)(features) - labels) ** 2)
        train_op = kte.minimize(keras.optimizers.SGD(0.1), loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = kte.TPUEstimator(
        model_fn, config=kte.RunConfig(), train_batch_size=BATCH, use_tpu=False
    )
    callback = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: use(callback.model)
    )
    with pytest.raises(NotImplementedError, match="makes its layers .*`model.predict`"):
        train(estimator, generated(X, Y), callback)
