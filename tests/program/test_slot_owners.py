"""Tests that assign each slot of an optimizer to its variable."""

import keras
import pytest

import keras_tpu_estimator as kte
from keras_tpu_estimator.engine.program.store import slot_owners


class Made:
    def __init__(self, *shape):
        self.shape = shape


@pytest.mark.parametrize(
    ("slot", "owner"),
    [
        ("adam/dense_kernel_momentum", "dense/kernel"),
        ("adam/dense_1_kernel_momentum", "dense_1/kernel"),
        ("dense/kernel/Adam", "dense/kernel"),
        ("dense/kernel/Adam_1", "dense/kernel"),
        ("dense/kernel/ExponentialMovingAverage", "dense/kernel"),
        # Slots with another shape, or without a variable.
        ("adam/dense_bias_momentum", None),
        ("adam/iteration", None),
        ("dense/kernel", None),
        ("dense_1/kernel", None),
    ],
)
def test_owners_of_slots(slot, owner):
    paths = ("dense/kernel", "dense_1/kernel", "adam/iteration", slot)
    made = {path: Made(2, 3) for path in paths} | {"dense/bias": Made(3)}
    assert slot_owners(made).get(slot) == owner


@pytest.mark.parametrize(
    "optimizer", ["Adam", "SGD", "RMSprop", "Adagrad", "Ftrl", "Lion", "Nadam"]
)
def test_all_slots_of_keras(optimizer):
    kernel = keras.Variable([[1.0, 2.0]], name="kernel")
    chosen = {"momentum": 0.9} if optimizer == "SGD" else {}
    made = getattr(keras.optimizers, optimizer)(**chosen)
    made.build([kernel])
    variables = {v.path: v for v in (kernel, *made.variables)}
    slots = [path for path, v in variables.items() if v.ndim and v is not kernel]
    assert slots
    assert slot_owners(variables) == dict.fromkeys(slots, "kernel")


def test_owners_of_optax_state():
    class Adam:
        def init(self, params):
            return {"mu": params, "mean": keras.ops.zeros((1, 2))}

        def update(self, updates, state, params):
            return updates, state

    kernel = keras.Variable([[1.0, 2.0]], name="kernel")
    made = kte.optimizers.Optax(Adam(), name="adam")
    made.build([kernel])
    variables = {v.path: v for v in (kernel, *made.variables)}
    assert "adam/mean" in variables
    # A model variable with a slot's shape and name is not a slot.
    other = keras.Variable([[1.0, 2.0]], name="mu")
    assert slot_owners(variables | {"net/kernel": other}) == {
        "adam/mu/kernel": "kernel"
    }
