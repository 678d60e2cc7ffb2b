"""Tests of optimizer state under Keras's names and TF1's."""

import keras
import pytest
from helpers import estimator_of, regression_data, repeated
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.model_fn.cross_shard_optimizer import slot

X, Y = regression_data()


def trained_with(optimizer, model_dir):
    """The wrapper, the kernel and the estimator after one step."""
    made = []

    def model_fn(features, labels, mode, params):
        layer = keras.layers.Dense(1)
        loss = ops.mean((layer(features) - labels) ** 2)
        wrapped = kte.CrossShardOptimizer(optimizer)
        made[:] = [wrapped, layer.kernel]
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=wrapped.minimize(loss))

    estimator = estimator_of(model_fn, model_dir)
    estimator.train(repeated(X, Y), steps=1)
    return *made, estimator


OPTIMIZERS = {
    "adam": (keras.optimizers.Adam, {"momentum": "m", "velocity": "v"}),
    "amsgrad": (
        lambda: keras.optimizers.Adam(amsgrad=True),
        {"momentum": "m", "velocity": "v", "velocity_hat": "vhat"},
    ),
    "adamax": (keras.optimizers.Adamax, {"momentum": "m", "norm": "v"}),
    "momentum": (
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        {"momentum": "momentum"},
    ),
    "rmsprop": (
        lambda: keras.optimizers.RMSprop(momentum=0.9, centered=True),
        {"average_gradient": "mg", "momentum": "momentum", "velocity": "rms"},
    ),
    "adagrad": (keras.optimizers.Adagrad, {"accumulator": "accumulator"}),
    "adadelta": (
        keras.optimizers.Adadelta,
        {"accumulated_delta_var": "accum_update", "accumulated_grad": "accum"},
    ),
    "ftrl": (
        keras.optimizers.Ftrl,
        {"accumulator": "accum", "linear": "linear"},
    ),
    "sgd": (keras.optimizers.SGD, {}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slots_have_names_of_keras_and_the_original(name):
    make, names = OPTIMIZERS[name]
    optimizer = make()
    kernel = keras.Variable([[1.0]], name="kernel")
    bias = keras.Variable([1.0], name="bias")
    optimizer.build([kernel, bias])
    wrapped = kte.CrossShardOptimizer(optimizer)
    assert wrapped.get_slot_names() == sorted(names)
    for keras_name, original in names.items():
        found = wrapped.get_slot(kernel, keras_name)
        assert found is wrapped.get_slot(kernel, original)
        assert found.path == f"{optimizer.name}/kernel_{keras_name}"
        assert found.shape == kernel.shape
        assert wrapped.get_slot(bias, original).shape == bias.shape
    assert wrapped.get_slot(kernel, "no_such_slot") is None
    assert wrapped.get_slot(keras.Variable([1.0], name="x"), "m") is None


def test_slots_do_not_exist_before_the_first_step():
    wrapped = kte.CrossShardOptimizer(keras.optimizers.Adam())
    assert wrapped.get_slot_names() == []
    assert wrapped.get_slot(keras.Variable(1.0), "m") is None


def test_value_of_a_slot_is_read_by_its_path(tmp_path):
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, name="sgd")
    wrapped, kernel, estimator = trained_with(optimizer, tmp_path)
    assert wrapped.get_slot_names() == ["momentum"]
    path = wrapped.get_slot(kernel, "momentum").path
    assert path == "sgd/dense_kernel_momentum"
    assert estimator.get_variable_value(path).shape == (3, 1)


def test_slots_of_several_optimizers(tmp_path):
    adam = keras.optimizers.Adam()
    several = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(adam, {}))
    wrapped, kernel, _ = trained_with(several, tmp_path)
    assert wrapped.get_slot_names() == ["momentum", "velocity"]
    assert wrapped.get_slot(kernel, "v") is slot([adam], kernel, "velocity")


def test_get_slot_requires_a_variable():
    wrapped = kte.CrossShardOptimizer(keras.optimizers.Adam())
    with pytest.raises(TypeError, match="keras.Variable"):
        wrapped.get_slot("dense/kernel", "m")
