"""Tests that hyperparameters are copied, except shared objects."""

import dataclasses
import functools
import weakref

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from keras_tpu_estimator.base.common.params import copied, with_additional


def built_layer():
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    return layer


SHARED = {
    "layer": built_layer,
    "model": lambda: keras.Sequential([keras.Input((3,)), built_layer()]),
    "optimizer": lambda: keras.optimizers.Adam(0.1),
    "variable": lambda: keras.Variable(1.0),
    "metric": keras.metrics.Mean,
    "loss": keras.losses.MeanSquaredError,
    "seeds": lambda: keras.random.SeedGenerator(1),
    "tensor": lambda: keras.KerasTensor((2,)),
    "array": lambda: jnp.ones(3),
}


class HParams:
    """The relevant part of TensorFlow's `HParams`."""

    def __init__(self, **values):
        self.values = values

    def __contains__(self, name):
        return name in self.values

    def set_hparam(self, name, value):
        assert name in self.values
        self.values[name] = value

    def add_hparam(self, name, value):
        assert name not in self.values
        self.values[name] = value


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    value: object


# Ways to hold an object, and to read it.
HOLDERS = {
    "dict": (lambda x: {"x": x}, lambda held: held["x"]),
    "key": (lambda x: {x: 1}, lambda held: next(iter(held))),
    "list": (lambda x: [0, [x]], lambda held: held[1][0]),
    "tuple": (lambda x: (x,), lambda held: held[0]),
    "object": (lambda x: HParams(x=x), lambda held: held.values["x"]),
    "slots": (lambda x: Slotted([x]), lambda held: held.value[0]),
    "partial": (
        lambda x: functools.partial(print, x),
        lambda held: held.args[0],
    ),
}


@pytest.mark.parametrize("kind", SHARED)
def test_keras_and_jax_objects_are_not_copied(kind):
    value = SHARED[kind]()
    assert copied({"nested": [value]})["nested"][0] is value
    assert copied(value) is value


@pytest.mark.parametrize("holder", HOLDERS)
def test_shared_objects_are_not_copied_in_containers(holder):
    hold, held = HOLDERS[holder]
    layer = built_layer()
    params = {"held": hold(layer)}
    assert held(copied(params)["held"]) is layer


def test_other_objects_are_copied():
    params = {
        "nested": {"list": [1]},
        "array": np.zeros(2),
        "object": HParams(rate=[0.1]),
        "initializer": keras.initializers.GlorotUniform(3),
    }
    copy = copied(params)
    copy["nested"]["list"].append(2)
    copy["array"][:] = 1
    copy["object"].values["rate"].append(0.2)
    copy["new"] = None
    assert params["nested"] == {"list": [1]}
    assert not params["array"].any()
    assert params["object"].values == {"rate": [0.1]}
    assert "new" not in params
    assert copy["initializer"] is not params["initializer"]


def test_object_held_twice_is_copied_once():
    shared = [1]
    circle = {"a": shared, "b": shared}
    circle["self"] = circle
    copy = copied(circle)
    assert copy["a"] is copy["b"] is not shared
    assert copy["self"] is copy


def test_proxies_of_deleted_objects_are_not_searched():
    class Held:
        def __deepcopy__(self, memo):
            return Held()

    held = Held()
    held.proxy = weakref.proxy(Held())
    assert isinstance(copied([held])[0], Held)


def test_functions_and_classes_are_not_searched():
    def function():
        return hidden

    hidden = built_layer()
    copy = copied({"function": function, "class": HParams, "module": [jax.jit]})
    assert copy["function"] is function
    assert copy["class"] is HParams


def test_copies_under_a_trace():
    layer, array = built_layer(), jnp.ones(2)
    seen = []

    def function(x):
        seen.append(copied({"layer": layer, "array": array, "x": [x]}))
        return x

    with keras.StatelessScope():
        jax.make_jaxpr(function)(1.0)
    assert seen[0]["layer"] is layer
    assert seen[0]["array"] is array


def test_additional_values_are_set_in_a_copy():
    params = {"rate": [0.1], "use_tpu": "mine"}
    copy = with_additional(params, {"use_tpu": True, "batch_size": 8})
    assert copy == {"rate": [0.1], "use_tpu": True, "batch_size": 8}
    copy["rate"].append(0.2)
    assert params == {"rate": [0.1], "use_tpu": "mine"}


def test_additional_values_of_hyperparameters_with_methods():
    layer = built_layer()
    params = HParams(layer=layer, use_tpu="mine")
    copy = with_additional(params, {"use_tpu": True, "batch_size": 8})
    assert copy.values == {"layer": layer, "use_tpu": True, "batch_size": 8}
    assert params.values == {"layer": layer, "use_tpu": "mine"}
