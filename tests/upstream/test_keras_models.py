"""Models, optimizers and metrics of Keras."""

import keras
import numpy as np
import pytest

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.upstream import keras_models, private_names


def test_arguments_of_compile_are_the_same_objects():
    def own(y_true, y_pred):
        return keras.ops.mean(y_true - y_pred, -1)

    metric = keras.metrics.AUC(3)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(
        keras.optimizers.SGD(0.1),
        own,
        loss_weights=0.5,
        metrics=[own, metric],
        weighted_metrics={"y": "mae"},
    )
    said = keras_models.compile_arguments(model)
    assert said["loss"] is own
    assert said["loss_weights"] == 0.5
    assert said["metrics"][0] is own
    assert said["metrics"][1] is metric
    assert said["weighted_metrics"] == {"y": "mae"}


def test_variables_that_an_optimizer_updates():
    variables = [keras.Variable(1.0), keras.Variable(2.0)]
    optimizer = keras.optimizers.Adam()
    assert keras_models.updated_variables(optimizer) == []
    optimizer.build(variables)
    found = keras_models.updated_variables(optimizer)
    assert [id(each) for each in found] == [id(each) for each in variables]


def test_class_can_be_registered_as_a_pytree_node():
    class Pair:
        def __init__(self, *values):
            self.values = values

        def tree_flatten(self):
            return self.values, None

        @classmethod
        def tree_unflatten(cls, metadata, values):
            return tuple(values)

    keras_models.register_node(Pair)
    assert keras.tree.map_structure(abs, Pair(-1, -2)) == (1, 2)


def test_directions_of_metrics_are_set_for_callbacks():
    metrics = {
        "error": keras.metrics.MeanSquaredError(),
        "fit": keras.metrics.R2Score(),
        "mean": keras.metrics.Mean(),
        "pair": (1.0, 1.0),
    }
    directions = keras_models.directions_of(metrics)
    assert directions == {"error": "down", "fit": "up"}
    own = keras_models.directed(directions)
    assert (own.variables, own.result(), own.reset_state()) == ([], {}, None)

    class Watched(keras.Model):
        metrics = [own]

    for name, better in (("error", keras.ops.less), ("fit", keras.ops.greater)):
        stopping = keras.callbacks.EarlyStopping(f"val_{name}")
        stopping.set_model(Watched())
        stopping.on_epoch_end(0, {f"val_{name}": 1.0})
        assert stopping.monitor_op is better


def test_metrics_of_compile_have_their_names():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["r2_score"])
    assert keras_models.metrics_of(model) == {}
    model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0)
    assert keras_models.metrics_of(model).keys() == {"mae", "r2_score"}


class Silent(keras.callbacks.Callback):
    """A callback of a Keras that updates variables by a method we do not know."""

    @property
    def model(self):
        return self._model


@pytest.fixture
def fresh_checks():
    """Makes checks run again, before and after a test."""
    private_names.run_once_apart.cache_clear()
    yield
    private_names.run_once_apart.cache_clear()


@pytest.mark.usefixtures("fresh_checks")
def test_keras_that_does_not_update_the_variables_of_callbacks_is_an_error(monkeypatch):
    keras_models.check_synchronization()
    private_names.run_once_apart.cache_clear()
    monkeypatch.setattr(keras.callbacks, "Callback", Silent)
    with pytest.raises(kte.errors.UnsupportedVersionError, match="reads its model"):
        keras_models.check_synchronization()


def test_values_are_synchronized_by_keras_itself():
    called = []

    class Model(keras.Model):
        def state_sync(self):
            called.append("ours")
            keras_models.synchronize(super())

        def jax_state_sync(self):
            self.state_sync()

    callback = keras.callbacks.Callback()
    callback.set_model(Model())
    called.clear()
    assert isinstance(callback.model, Model)
    assert called == ["ours"]
