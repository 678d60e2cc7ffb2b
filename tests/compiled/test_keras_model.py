"""Tests that estimators of Keras models match Keras's own `fit`."""

import functools

import keras
import numpy as np
import pytest
from helpers import slow
from keras import layers, ops

import keras_tpu_estimator as kte

pytestmark = pytest.mark.usefixtures("forked_trials")

EXAMPLES = 32
BATCH = 8
EPOCHS = 3
RNG = np.random.default_rng(3)
A = RNG.normal(size=(EXAMPLES, 3)).astype("float32")
B = RNG.normal(size=(EXAMPLES, 2)).astype("float32")
TOTAL = A.sum(axis=1, keepdims=True)
SIGN = (B[:, 0] > 0).astype("int32")
WEIGHTS = RNG.uniform(size=EXAMPLES).astype("float32")


def bias(y_true, y_pred):
    """A metric that Keras does not have."""
    return ops.mean(y_pred - y_true, axis=-1)


def sequential():
    return keras.Sequential(
        [
            layers.Input((3,)),
            layers.Dense(4, "tanh", kernel_regularizer="l2"),
            layers.Dense(1, name="total"),
        ]
    )


def normalizing():
    hidden = layers.Dense(4)(a := keras.Input((3,)))
    hidden = layers.BatchNormalization()(hidden)
    hidden = layers.Dropout(0.0)(hidden)
    hidden = layers.ActivityRegularization(l1=0.1)(hidden)
    return keras.Model(a, layers.Dense(1, name="total")(hidden))


def two_inputs(arrange):
    """A model of two inputs and two outputs, both in a dict or in a list."""
    inputs = {
        "a": keras.Input((3,), name="a"),
        "b": keras.Input((2,), name="b"),
    }
    hidden = layers.Dense(4, "tanh")(layers.Concatenate()([*inputs.values()]))
    outputs = {
        "total": layers.Dense(1, name="total")(hidden),
        "sign": layers.Dense(2, "softmax", name="sign")(hidden),
    }
    return keras.Model(arrange(inputs), arrange(outputs))


def in_list(tensors):
    return list(tensors.values())


class Subclassed(keras.Model):
    """A model whose `call` has no argument `training`."""

    def __init__(self, units=2, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.hidden = layers.Dense(units, "relu", name="hidden")
        self.last = layers.Dense(1, name="last")

    def call(self, x):
        return self.last(self.hidden(x))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def subclassed():
    model = Subclassed(units=3)
    model(A)
    return model


def compiled(make, *args, **kwargs):
    """Makes a compiled model, with the same weights every time."""
    keras.utils.set_random_seed(5)
    model = make()
    model.compile(*args, **kwargs)
    return model


BOTH = {"loss": {"total": "mse", "sign": "sparse_categorical_crossentropy"}}
MODELS = {
    "sequential": (
        lambda: compiled(
            sequential,
            keras.optimizers.SGD(0.05, momentum=0.9),
            "mse",
            metrics=["mae", bias, keras.metrics.MeanSquaredError("squares")],
        ),
        A,
        TOTAL,
    ),
    "state and losses of layers": (
        lambda: compiled(
            normalizing,
            # Biases before a normalization have only rounding errors as gradients.
            keras.optimizers.Adam(
                keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5),
                epsilon=1e-3,
            ),
            keras.losses.Huber(),
            metrics=["mae"],
        ),
        A,
        TOTAL,
    ),
    "dicts": (
        lambda: compiled(
            lambda: two_inputs(dict),
            keras.optimizers.Adam(0.01, global_clipnorm=1.0),
            **BOTH,
            loss_weights={"total": 0.5, "sign": 2.0},
            metrics={"total": ["mae"], "sign": ["accuracy", "accuracy"]},
            weighted_metrics={"total": ["mae"]},
        ),
        {"a": A, "b": B},
        {"total": TOTAL, "sign": SIGN},
    ),
    "lists": (
        lambda: compiled(
            lambda: two_inputs(in_list),
            "rmsprop",
            ["mae", "sparse_categorical_crossentropy"],
            metrics=[["mse"], ["accuracy"]],
        ),
        {"a": A, "b": B},
        (TOTAL, SIGN),
    ),
    "subclassed": (
        lambda: compiled(subclassed, "sgd", "mse", metrics=["mae"]),
        A,
        TOTAL,
    ),
}


def rows(nest, chosen):
    return keras.tree.map_structure(lambda array: array[chosen], nest)


def input_fn_of(features, labels):
    def input_fn(params):
        data = features if labels is None else (features, labels)
        for start in range(0, EXAMPLES, BATCH):
            yield rows(data, slice(start, start + BATCH))

    return input_fn


def estimator_of(model, **kwargs):
    sizes = ("train_batch_size", "eval_batch_size", "predict_batch_size")
    return kte.from_keras(
        model, **{"use_tpu": False, **dict.fromkeys(sizes, BATCH), **kwargs}
    )


def train(estimator, input_fn):
    for _ in range(EPOCHS):
        estimator.train(input_fn, steps=EXAMPLES // BATCH)


def fit(model, features, labels, **kwargs):
    model.fit(features, labels, BATCH, EPOCHS, verbose=0, shuffle=False, **kwargs)


def evaluated(model, *data, **kwargs):
    return model.evaluate(*data, BATCH, verbose=0, return_dict=True, **kwargs)


@functools.cache
def numbers_of_keras(name):
    """A model's evaluations before and after `fit`, and its predictions."""
    make, features, labels = MODELS[name]
    model = make()
    given = by_list(model, features)
    before = evaluated(model, given, labels)
    fit(model, given, labels)
    after = evaluated(model, given, labels)
    return before, after, keras.tree.flatten(model.predict(given, verbose=0))


def assert_same_results(result, expected):
    assert result.keys() == {*expected, "global_step"}
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value, 1e-5, 1e-6, err_msg=name)


def by_list(model, features):
    """Features in the form that Keras's functions accept."""
    is_list = isinstance(getattr(model, "input", None), list)
    return list(features.values()) if is_list else features


def predicted(estimator, input_fn):
    (batch,) = [
        keras.tree.map_structure(lambda *rows: np.stack(rows), *rows)
        for rows in [list(estimator.predict(input_fn))]
    ]
    return batch


CASES = [
    *((name, False) for name in MODELS if name not in ("dicts", "lists")),
    *(("dicts", True), slow("dicts", False), ("lists", False)),
]


@pytest.mark.rows(3)
@pytest.mark.parametrize(("name", "use_tpu"), CASES)
def test_results_match_keras(name, use_tpu):
    make, features, labels = MODELS[name]
    before, after, expected = numbers_of_keras(name)
    input_fn = input_fn_of(features, labels)
    estimator = estimator_of(make(), use_tpu=use_tpu)
    assert_same_results(estimator.evaluate(input_fn), before)
    train(estimator, input_fn)
    assert_same_results(estimator.evaluate(input_fn), after)
    got = keras.tree.flatten(predicted(estimator, input_fn))
    for one, other in zip(
        sorted(got, key=np.shape), sorted(expected, key=np.shape), strict=True
    ):
        np.testing.assert_allclose(one, other, 1e-4, 1e-5)


def test_model_is_unchanged():
    make, features, labels = MODELS["sequential"]
    model, same = make(), make()
    counted = model.evaluate(features, labels, verbose=0, return_dict=True)
    before = model.get_weights()
    estimator = estimator_of(model)
    # Keras donates the arrays of its model, which an estimator has copied.
    fit(same, features, labels)
    train(estimator, input_fn_of(features, labels))
    assert estimator.evaluate(input_fn_of(features, labels))["loss"] > 0
    for weight, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)
    assert model.compiled
    assert model.get_metrics_result() == counted
    assert int(model.optimizer.iterations.value) == 0


def test_checkpoints_contain_only_the_model_and_its_optimizer():
    make, features, labels = MODELS["dicts"]
    estimator = estimator_of(make())
    estimator.train(input_fn_of(features, labels), steps=1)
    names = {name.split("/")[0] for name in estimator.get_variable_names()}
    (other,) = names - {"total", "sign", "adam", "global_step"}
    assert other.startswith("dense")


def test_weights_of_examples():
    make, features, labels = MODELS["dicts"]
    model = make()
    given = {"features": features, "sample_weights": WEIGHTS}
    estimator = estimator_of(model)
    train(estimator, input_fn_of(given, labels))
    fit(model, features, labels, sample_weight=WEIGHTS)
    result = estimator.evaluate(input_fn_of(given, labels))
    expected = evaluated(model, features, labels, sample_weight=WEIGHTS)
    assert_same_results(result, expected)
    assert result["total_mae"] != result["total_weighted_mae"]


def test_masks():
    ids = RNG.integers(0, 4, size=(EXAMPLES, 5))
    labels = RNG.normal(size=(EXAMPLES, 5, 1)).astype("float32")
    inputs = keras.Input((5,), dtype="int32")
    hidden = layers.Embedding(4, 3, mask_zero=True)(inputs)
    # Recurrent layers of Keras 3.16 do not pass masks on.
    hidden = layers.Dense(3, "tanh")(hidden)
    model = keras.Model(inputs, layers.Dense(1)(hidden))
    model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["mse"])
    result = estimator_of(model).evaluate(input_fn_of(ids, labels))
    assert_same_results(result, evaluated(model, ids, labels))
    mistakes = np.abs(model.predict(ids, verbose=0) - labels)
    assert abs(result["mae"] - mistakes.mean()) > 1e-3


def test_frozen_variables():
    model = sequential()
    model.layers[0].trainable = False
    model.compile("sgd", "mse")
    estimator = estimator_of(model)
    estimator.train(input_fn_of(A, TOTAL), steps=2)
    for variable in model.variables:
        value = estimator.get_variable_value(variable.path)
        same = np.array_equal(value, variable.numpy())
        assert same == (not variable.trainable)


def test_other_names_for_metrics():
    make, features, labels = MODELS["sequential"]
    estimator = estimator_of(make(), metric_names_map={"mae": "mistake"})
    result = estimator.evaluate(input_fn_of(features, labels))
    assert result.keys() == {*("bias", "global_step", "loss", "mistake", "squares")}


def test_losses_only_from_layers():
    inputs = keras.Input((3,))
    outputs = layers.ActivityRegularization(l2=0.5)(layers.Dense(1)(inputs))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.01))
    estimator = estimator_of(model)
    first = estimator.evaluate(lambda params: A)["loss"]
    estimator.train(lambda params: A, steps=20)
    assert 0 < estimator.evaluate(lambda params: A)["loss"] < 0.9 * first


PREDICTED = {
    "sequential": (sequential, A, ["total"]),
    "functional": (lambda: two_inputs(in_list), {"a": A, "b": B}, None),
    "subclassed": (subclassed, A, ["output_1"]),
    "any name": (sequential, {"anything": A}, ["total"]),
}


@pytest.mark.parametrize("name", PREDICTED)
def test_predictions_before_training(name):
    make, features, names = PREDICTED[name]
    model = compiled(make, "sgd", "mse")
    got = predicted(estimator_of(model), input_fn_of(features, None))
    assert sorted(got) == (names or ["sign", "total"])
    given = A if name == "any name" else by_list(model, features)
    expected = model.predict(given, verbose=0)
    expected = expected[0] if isinstance(expected, list) else expected
    key = "total" if "total" in got else "output_1"
    np.testing.assert_allclose(got[key], expected, 1e-5, 1e-6)


def test_export(tmp_path):
    make, features, labels = MODELS["dicts"]
    estimator = estimator_of(make(), model_dir=tmp_path)
    estimator.train(input_fn_of(features, labels), steps=1)
    path = estimator.export_saved_model(
        tmp_path / "export",
        kte.export.build_raw_serving_input_receiver_fn(features),
    )
    import tensorflow as tf

    loaded = tf.saved_model.load(path, tags=["serve"])
    served = loaded.signatures["serving_default"](
        **{name: tf.constant(array) for name, array in features.items()}
    )
    expected = predicted(estimator, input_fn_of(features, labels))
    assert served.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(served[name], value, 1e-5, 1e-6)


@pytest.mark.rows(2)
@pytest.mark.parametrize("name", ["lists", "subclassed", "sequential"])
def test_model_itself_is_exported_as_a_keras_file(name, tmp_path):
    make, features, labels = MODELS[name]
    estimator = estimator_of(make(), model_dir=tmp_path / "run")
    # The second training donates the arrays of the first.
    train(estimator, input_fn_of(features, labels))
    path = kte.export_keras(estimator, tmp_path / "m.keras", features)
    weights = kte.export_keras(estimator, tmp_path / "m.weights.h5", features)

    same = make()
    same.optimizer.build(same.trainable_variables)
    same.load_weights(weights)
    own = {"Subclassed": Subclassed}
    loaded = keras.models.load_model(path, custom_objects=own)
    given = by_list(same, features)
    by_name = predicted(estimator, input_fn_of(features, None))
    expected = sorted(by_name.values(), key=np.shape)
    outputs = [model.predict(given, verbose=0) for model in (same, loaded)]
    keras.tree.assert_same_structure(*outputs)
    for each in outputs:
        got = sorted(keras.tree.flatten(each), key=np.shape)
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, 1e-4, 1e-5)
    assert type(loaded) is type(same)
    # Keras cannot load a metric that is a user's function.
    assert loaded.compiled == (name != "sequential")
    steps = EPOCHS * EXAMPLES // BATCH
    for model in (same, loaded) if loaded.compiled else (same,):
        assert int(model.optimizer.iterations.value) == steps


@pytest.mark.parametrize("call", ["train", "evaluate"])
def test_training_needs_a_compiled_model(call):
    estimator = estimator_of(compiled(subclassed, "sgd"))
    with pytest.raises(ValueError, match="must have a loss"):
        getattr(estimator, call)(input_fn_of(A, TOTAL), steps=1)


class Stepping(Subclassed):
    def train_step(self, *args):
        return super().train_step(*args)


class WithoutConfig(keras.Model):
    def __init__(self, units):
        super().__init__()
        self.dense = layers.Dense(units)

    def call(self, x):
        return self.dense(x)


def called(model):
    model(A)
    return model


def scaled(optimizer):
    return compiled(sequential, optimizer, "mse")


@pytest.mark.parametrize(
    ("make", "exception", "message"),
    [
        (lambda: Subclassed, TypeError, "must be a keras.Model.*type"),
        (lambda: Subclassed(3), ValueError, "must be built.*keras.Input"),
        (
            subclassed,
            ValueError,
            r"must be compiled.*model.compile\(.*from_keras",
        ),
        (
            lambda: compiled(lambda: called(Stepping(3)), "sgd", "mse"),
            ValueError,
            r"overrides \['train_step'\]",
        ),
        (
            lambda: compiled(lambda: called(WithoutConfig(3)), "sgd", "mse"),
            ValueError,
            "cannot be copied.*a `get_config`.*a model_fn that uses",
        ),
        (
            lambda: scaled(
                keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
            ),
            ValueError,
            "Loss scaling is not supported.*mixed_bfloat16",
        ),
        (
            lambda: scaled(keras.optimizers.SGD(0.1, loss_scale_factor=8.0)),
            ValueError,
            "Loss scaling is not supported.*`loss_scale_factor`",
        ),
    ],
)
def test_unsupported_models_are_refused(make, exception, message):
    with pytest.raises(exception, match=f"(?s){message}"):
        kte.from_keras(make())


def test_two_outputs_with_equal_names():
    inputs = keras.Input((3,))
    dense = layers.Dense(1, name="twice")
    model = keras.Model(inputs, [dense(inputs), dense(-inputs)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="with different names.*a dict"):
        next(estimator_of(model).predict(input_fn_of(A, None)))
