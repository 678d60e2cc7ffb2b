"""A program that prints how plain Keras behaves before, beside and after this package.

`test_plain_keras.py` runs it in a process of its own.
"""

import json
import os
import sys
import threading
import types
import warnings

os.environ["KERAS_BACKEND"] = "jax"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import random

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import layers


def attributes():
    """Each function and class of Keras by the place that refers to it."""
    found = {}
    for module_name, module in sorted(sys.modules.items()):
        if module_name.partition(".")[0] != "keras" or module is None:
            continue
        for name, value in list(vars(module).items()):
            is_code = isinstance(value, type | types.FunctionType | types.ModuleType)
            if is_code and not name.startswith("__"):
                found[f"{module_name}.{name}"] = value
            if isinstance(value, type) and value.__module__ == module_name:
                for member, function in list(vars(value).items()):
                    if callable(function) or isinstance(function, property):
                        found[f"{module_name}.{name}.{member}"] = function
    return found


def masks_after_attention():
    x = layers.Embedding(4, 3, mask_zero=True)(np.array([[3, 0]]))
    layers.MultiHeadAttention(1, 2)(x, x)
    return getattr(x, "_keras_mask", None) is None


def wide_assignment():
    variable = keras.Variable(np.int32(1), dtype="int32")
    variable.assign(np.int64(2**40))
    return int(variable.value)


def default_seeds():
    random.seed(5)
    return [keras.initializers.RandomNormal().seed, layers.Dropout(0.5).seed]


def names():
    first, second = layers.Dense(1).name, layers.Dense(1).name
    count = int(first.rpartition("_")[2]) if "_" in first else 0
    return second == f"dense_{count + 1}"


def names_of_jax_weights():
    layer = layers.JaxLayer(lambda params, inputs: inputs, params={"w": np.ones(1)})
    return [weight.name.partition("_")[0] for weight in layer.weights]


def jax_layer_in_a_trace():
    return jax.make_jaxpr(
        lambda x: layers.JaxLayer(
            lambda params, inputs: inputs, lambda rng, inputs: {"w": 0.0}
        )(x)
    )(np.ones((1, 2)))


def host_layer_in_a_trace():
    return str(jax.make_jaxpr(layers.Hashing(3))(np.ones((2, 1), "int32")))


def rate_of_a_tensor():
    optimizer = keras.optimizers.SGD(jnp.float32(0.5))
    return type(optimizer._learning_rate).__name__


def variable_in_a_trace():
    def function(x):
        return keras.Variable(x).value

    return str(jax.make_jaxpr(function)(1.0))


def config_of_a_function():
    return layers.Dense(1, activation=double, name="dense").get_config()["activation"]


def double(x):
    return 2 * x


def serialized_lambda():
    return sorted(keras.saving.serialize_keras_object(lambda x: x))


def registered_name():
    return keras.saving.get_registered_name(double)


def largest():
    return str(jax.make_jaxpr(keras.ops.argmax)(np.ones(3, "float32")))


def attention():
    row = np.ones((1, 2, 1, 2), "float32")
    return str(jax.make_jaxpr(keras.ops.dot_product_attention)(row, row, row))


def moments():
    layer = layers.LayerNormalization(dtype="mixed_bfloat16")
    row = jnp.ones((2, 3), "bfloat16")
    layer.build(row.shape)
    return str(jax.make_jaxpr(layer)(row))


def random_numbers():
    return np.asarray(keras.random.uniform((2,), seed=3)).tolist()


def random_numbers_of_another_generator():
    with jax.default_prng_impl("rbg"):
        return np.asarray(keras.random.uniform((2,), seed=3)).tolist()


class Trained(keras.Model):
    def call(self, x):
        return x

    def train_step(self, *args):
        raise NotImplementedError


def warnings_of_a_custom_step():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Trained()(np.ones((1, 1)))
    return [str(each.message) for each in caught]


def trained():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)
    return history.history["loss"]


def stateless_scope():
    variable = keras.Variable(1.0)
    with keras.StatelessScope() as scope:
        variable.assign(2.0)
    value = scope.get_current_value(variable)
    return [float(variable.value), float(value)]


def distribution():
    return keras.distribution.distribution() is None


def policy():
    return keras.config.dtype_policy().name


BEHAVIOURS = (
    masks_after_attention,
    wide_assignment,
    default_seeds,
    names,
    names_of_jax_weights,
    jax_layer_in_a_trace,
    host_layer_in_a_trace,
    rate_of_a_tensor,
    variable_in_a_trace,
    config_of_a_function,
    serialized_lambda,
    registered_name,
    largest,
    attention,
    moments,
    random_numbers,
    random_numbers_of_another_generator,
    warnings_of_a_custom_step,
    trained,
    stateless_scope,
    distribution,
    policy,
)


def behaviours():
    """The result or the error of each behaviour, by its name."""
    results = {}
    for behaviour in BEHAVIOURS:
        try:
            results[behaviour.__name__] = behaviour()
        except Exception as error:
            results[behaviour.__name__] = f"{type(error).__name__}: {error}"[:200]
    return json.loads(json.dumps(results))


X, Y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
SIZES = {"train_batch_size": 8, "eval_batch_size": 8, "predict_batch_size": 8}


def model_fn_of(kte):
    """A `model_fn` that uses what the package replaces in a trace."""

    def model_fn(features, labels, mode, params):
        x = layers.Dense(4)(layers.LayerNormalization()(features["x"]))
        x = keras.ops.expand_dims(x, 1)
        x = layers.MultiHeadAttention(1, 2)(x, x)[:, 0]
        y = layers.Dense(1)(layers.Dropout(0.1)(x, training=mode == "train"))
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, predictions={"y": y})
        loss = keras.ops.mean((y - labels) ** 2)
        train_op = None
        if mode == kte.ModeKeys.TRAIN:
            optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.1))
            train_op = optimizer.minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def run_beside(kte, function):
    """A hook that calls a function once, on another thread, while training runs."""

    class Beside(kte.hooks.SessionRunHook):
        has_run = False

        def after_run(self, run_context, run_values):
            if not self.has_run:
                self.has_run = True
                thread = threading.Thread(target=function)
                thread.start()
                thread.join()

    return Beside()


def use(kte, folder, hooks=()):
    """Uses the package as a user does, and yields the name of each phase at its end."""
    config = kte.RunConfig(model_dir=f"{folder}/model", tf_random_seed=1)
    model_fn = model_fn_of(kte)
    estimator = kte.TPUEstimator(model_fn, config=config, use_tpu=False, **SIZES)
    batches = [({"x": X}, Y)] * 4
    estimator.train(lambda params: iter(batches), hooks=hooks)
    estimator.evaluate(lambda params: iter(batches))
    list(estimator.predict(lambda params: iter([{"x": X}])))
    yield "trained"
    receiver = kte.export.build_raw_serving_input_receiver_fn({"x": X})
    estimator.export_saved_model(f"{folder}/export", receiver)
    yield "exported"
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1, activation=double)])
    model.compile("adam", "mse", metrics=["mae"])
    estimator = kte.from_keras(model, f"{folder}/keras", use_tpu=False, **SIZES)
    estimator.train(lambda params: iter([(X, Y)] * 4))
    estimator.evaluate(lambda params: iter([(X, Y)]))
    yield "from_keras"


def main(folder):
    report = {}
    behaviours()  # Keras and JAX import modules when they are first used.
    before = attributes()

    def phase(name):
        after = attributes()
        changed = [key for key in before if after.get(key) is not before[key]]
        report[name] = {"behaviours": behaviours(), "changed": changed}

    def beside():
        report["beside"] = {"behaviours": behaviours()}

    phase("before")
    import keras_tpu_estimator as kte

    phase("imported")
    for name in use(kte, folder, [run_beside(kte, beside)]):
        phase(name)
    sys.stdout.write("\n" + json.dumps(report) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
