"""Tests metrics that layers update, and metrics that read variables of others."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_tpu_estimator as kte

EXAMPLES, BATCH = 32, 16
RNG = np.random.default_rng(0)
X = RNG.normal(size=(EXAMPLES, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Largest(keras.metrics.Metric):
    """A metric that is no sum."""

    def __init__(self, name="largest", **kwargs):
        super().__init__(name=name, **kwargs)
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, value):
        self.value.assign(ops.maximum(self.value + 0, value))

    def result(self):
        return self.value + 0


@keras.saving.register_keras_serializable("layer_metrics")
class Tracked(layers.Layer):
    """Adds the mean of its input to a metric."""

    def __init__(self, kind="mean", early=True, **kwargs):
        super().__init__(**kwargs)
        self.kind, self.early = kind, early
        if early:
            self.seen = self.metric()

    def metric(self):
        return Largest() if self.kind == "largest" else keras.metrics.Mean("seen")

    def build(self, shape):
        if not self.early:
            self.seen = self.metric()
        self.built = True

    def call(self, x):
        self.seen.update_state(ops.mean(x))
        return x - self.seen.result() if self.kind == "subtracted" else x

    def get_config(self):
        return {**super().get_config(), "kind": self.kind, "early": self.early}


def estimator_of(layer, metrics=None, **settings):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((4,)), layer, layers.Dense(1, name="y")], name="m"
    )
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=metrics)
    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(iterations_per_loop=2),
        micro_batches=settings.pop("micro_batches", 1),
    )
    sizes = {"train_batch_size": BATCH, "eval_batch_size": BATCH}
    arguments = {"config": config, "use_tpu": False, **sizes, **settings}
    return kte.from_keras(model, **arguments)


def input_fn(params):
    for start in range(0, EXAMPLES, BATCH):
        yield X[start : start + BATCH], Y[start : start + BATCH]


def trained(estimator, epochs=2):
    history = keras.callbacks.History()
    hook = kte.hooks.CallbackHook([history], steps_per_epoch=EXAMPLES // BATCH)
    for _ in range(epochs):
        estimator.train(input_fn, steps=EXAMPLES // BATCH, hooks=[hook])
    return history.history


@pytest.mark.parametrize(
    ("early", "metrics", "settings"),
    [
        (True, None, {}),
        (False, ["mae"], {"use_tpu": True}),
        (True, ["mae"], {"micro_batches": 2}),
    ],
)
def test_metrics_of_layers_are_reported(early, metrics, settings):
    names = {"seen": "mean_of_x"}
    estimator = estimator_of(
        Tracked(early=early, name="tracked"),
        metrics,
        metric_names_map=names,
        **settings,
    )
    logs = trained(estimator)
    # Each epoch starts again.
    np.testing.assert_allclose(logs["mean_of_x"], [X.mean()] * 2, rtol=1e-5)
    result = estimator.evaluate(input_fn)
    np.testing.assert_allclose(result["mean_of_x"], X.mean(), rtol=1e-5)
    assert logs.keys() | {"global_step"} == result.keys()
    assert ("mae" in logs) == (metrics is not None)
    assert not any("seen" in name for name in estimator.get_variable_names())


@pytest.mark.parametrize(
    ("kind", "name"), [("largest", "largest"), ("subtracted", "seen")]
)
def test_other_metrics_of_layers_are_named(kind, name):
    estimator = estimator_of(Tracked(kind, name="tracked"), ["mae"])
    message = f"layers in 'm' must only add.*Received .'{name}'.*`compile` instead"
    with pytest.warns(UserWarning, match=message):
        logs = trained(estimator, epochs=1)
    assert logs.keys() == {"loss", "mae"}


def test_metrics_that_read_other_variables_are_named():
    elsewhere = keras.Variable(1.0, name="elsewhere")

    def rate(y_true, y_pred):
        return elsewhere * ops.mean(y_pred)

    estimator = estimator_of(layers.Identity(), ["mae", rate])
    with pytest.warns(UserWarning, match="metric 'rate' .*reads .'elsewhere'"):
        logs = trained(estimator, epochs=1)
    assert logs.keys() == {"loss", "mae"}


def test_metrics_may_read_variables_of_the_program():
    weight = keras.Variable(2.0, trainable=False, name="weight")

    def weighted(y_true, y_pred):
        return weight * ops.mean((y_true - y_pred) ** 2, axis=-1)

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, name="y")], name="m")
    model.compile(keras.optimizers.SGD(0.1), weighted, metrics=[weighted])
    estimator = kte.from_keras(model, use_tpu=False, train_batch_size=BATCH)
    logs = trained(estimator, epochs=1)
    np.testing.assert_allclose(logs["weighted"], logs["loss"], rtol=1e-5)
