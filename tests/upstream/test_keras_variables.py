"""Variables of Keras: values, paths, dtypes and creation."""

import inspect

import keras
import numpy as np
import pytest

from keras_tpu_estimator.base.upstream import keras_state, keras_variables


class Peeking(keras.layers.Layer):
    """Records the dtypes of its weight during calls."""

    def build(self, shape):
        self.weight = self.add_weight(shape=(shape[-1],), name="weight")

    def call(self, x):
        self.seen = (str(self.weight.dtype), keras_variables.stored_dtype(self.weight))
        return x * self.weight


@pytest.mark.parametrize(
    "policy, seen",
    [
        ("float32", ("float32", "float32")),
        ("mixed_bfloat16", ("bfloat16", "float32")),
        ("mixed_float16", ("float16", "float32")),
        ("bfloat16", ("bfloat16", "bfloat16")),
    ],
)
def test_stored_dtype_ignores_autocast(policy, seen):
    layer = Peeking(dtype=policy)
    layer(np.ones((2, 3), "float32"))
    assert layer.seen == seen
    assert keras_variables.stored_dtype(layer.weight) == str(layer.weight.value.dtype)


def test_stored_dtype_of_variables_without_a_value():
    with keras_state.fresh_names(), keras.StatelessScope(initialize_variables=False):
        variable = keras.Variable("zeros", shape=(2,), dtype="int32")
        assert keras_variables.stored_dtype(variable) == "int32"


def recorder(calls):
    def wrap(construct, variable, initializer, kwargs):
        calls.append((variable, initializer, kwargs))
        construct(variable, initializer, **kwargs)

    return wrap


def test_keras_constructor_accepts_the_forwarded_arguments():
    names = list(inspect.signature(keras.Variable.__init__).parameters)
    assert names[:5] == ["self", "initializer", "shape", "dtype", "trainable"]


def test_every_creation_is_seen():
    calls = []
    with keras_variables.creation_intercepted(recorder(calls)):
        variable = keras.Variable(1.0, name="here")
        layer = keras.layers.Dense(2)
        layer.build((None, 3))
        optimizer = keras.optimizers.SGD(0.1)
    seen = [id(each) for each, _, _ in calls]
    for made in (variable, layer.kernel, layer.bias, optimizer.iterations):
        assert seen.count(id(made)) == 1
    assert calls[0][1:] == (1.0, {"name": "here"})


def test_positional_arguments_are_named():
    calls = []
    with keras_variables.creation_intercepted(recorder(calls)):
        variable = keras.Variable("ones", (2, 3), "int32", False, name="here")
        by_name = keras.Variable(initializer="ones", shape=(1,))
        assert calls[0][1:] == (
            "ones",
            {
                "shape": (2, 3),
                "dtype": "int32",
                "trainable": False,
                "name": "here",
            },
        )
    assert variable.shape == (2, 3)
    assert variable.dtype == "int32"
    assert not variable.trainable
    assert calls[-1][:2] == (by_name, "ones")


def test_assigned_path_is_the_variables_path():
    variable = keras.Variable(1.0, name="before")
    keras_variables.set_path(variable, "after/it")
    assert variable.path == "after/it"
    assert variable.name == "before"


def test_variable_can_hold_an_array_of_another_shape():
    variable = keras.Variable("zeros", shape=(3,))
    array = keras.ops.ones(4)
    keras_variables.hold(variable, array)
    assert variable.value is array
    assert variable.shape == (3,)
