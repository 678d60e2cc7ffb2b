"""Tests that flax, equinox and plain JAX models match Keras layers."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from helpers import estimator_of, model_fn_of, slow

import keras_tpu_estimator as kte

pytestmark = pytest.mark.usefixtures("forked_trials")

RNG = np.random.default_rng(3)
IMAGES = RNG.normal(size=(16, 4, 4, 3)).astype("float32")
ROWS = IMAGES[:, 0, 0]
LABELS = RNG.normal(size=(16, 1)).astype("float32")


@dataclasses.dataclass(frozen=True)
class Case:
    """A network in two frameworks.

    Attributes:
        features: A batch for the network.
        network: A function of the features and of `is_training`.
        in_keras: The same network in Keras, with the same initial values.
        names: The paths of the variables by the paths of Keras's variables.
        rule: A layout rule for one of the variables.
        keras_rule: The same rule for Keras's variable.
    """

    features: np.ndarray
    network: Callable[..., Any]
    in_keras: Callable[..., Any]
    names: dict[str, str]
    rule: tuple[str, Any]
    keras_rule: tuple[str, Any]


def constant(value):
    """A Keras initializer that returns these values."""
    return lambda shape, dtype: jnp.asarray(value, dtype).reshape(shape)


def nnx_resnet():
    """A convolution, a block with a shortcut, and a dense layer in nnx."""
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(4, 4, (3, 3), use_bias=False, rngs=rngs)
            self.norm = nnx.BatchNorm(
                4, momentum=0.9, use_fast_variance=False, rngs=rngs
            )

        def __call__(self, x):
            return x + nnx.relu(self.norm(self.conv(x)))

    class ResNet(nnx.Module):
        def __init__(self, rngs):
            self.stem = nnx.Conv(3, 4, (3, 3), rngs=rngs)
            self.blocks = nnx.List([Block(rngs)])
            self.head = nnx.Linear(4, 1, rngs=rngs)

        def __call__(self, x):
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean((1, 2)))

    def network(features, is_training):
        model = kte.jax_params("resnet", lambda: ResNet(nnx.Rngs(0)))
        model.train() if is_training else model.eval()
        outputs = model(features)
        kte.assign_jax_params("resnet", nnx.state(model, nnx.BatchStat))
        return outputs

    start = ResNet(nnx.Rngs(0))
    block = start.blocks[0]

    def in_keras(features, is_training):
        layers = keras.layers
        x = layers.Conv2D(
            4,
            3,
            padding="same",
            kernel_initializer=constant(start.stem.kernel[...]),
        )(features)
        more = layers.Conv2D(
            4,
            3,
            padding="same",
            use_bias=False,
            kernel_initializer=constant(block.conv.kernel[...]),
        )(x)
        more = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(
            more, training=is_training
        )
        x = keras.ops.mean(x + keras.ops.relu(more), (1, 2))
        return layers.Dense(1, kernel_initializer=constant(start.head.kernel[...]))(x)

    norm, keras_norm = "resnet/blocks/0/norm", "batch_normalization"
    names = {
        "conv2d/kernel": "resnet/stem/kernel",
        "conv2d_1/kernel": "resnet/blocks/0/conv/kernel",
        "dense/kernel": "resnet/head/kernel",
        "dense/bias": "resnet/head/bias",
        f"{keras_norm}/gamma": f"{norm}/scale",
        f"{keras_norm}/beta": f"{norm}/bias",
        f"{keras_norm}/moving_mean": f"{norm}/mean",
        f"{keras_norm}/moving_variance": f"{norm}/var",
    }
    axes = (None, None, None, "model")
    rules = ("resnet/stem/kernel", axes), ("conv2d/kernel", axes)
    return Case(IMAGES, network, in_keras, names, *rules)


def two_dense_layers(network, first, second, names, axes):
    """The case of an MLP with one hidden layer."""

    def in_keras(features, is_training):
        del is_training
        (w, b), (w2, b2) = first, second
        hidden = keras.layers.Dense(
            8, "relu", True, constant(w), bias_initializer=constant(b)
        )(features)
        return keras.layers.Dense(
            1, None, True, constant(w2), bias_initializer=constant(b2)
        )(hidden)

    keras_names = [
        f"{layer}/{name}"
        for layer in ("dense", "dense_1")
        for name in ("kernel", "bias")
    ]
    by_name = dict(zip(keras_names, names, strict=True))
    rules = (names[0], axes), ("dense/kernel", (None, "model"))
    return Case(ROWS, network, in_keras, by_name, *rules)


def equinox_mlp():
    """An equinox MLP, whose activation is also a leaf."""
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")

    def make():
        return eqx.nn.MLP(3, 1, 8, 1, key=jax.random.key(1))

    def network(features, is_training):
        del is_training
        return jax.vmap(kte.jax_params("mlp", make))(features)

    one, two = make().layers
    return two_dense_layers(
        network,
        (one.weight.T, one.bias),
        (two.weight.T, two.bias),
        [
            f"mlp/layers/{number}/{name}"
            for number in range(2)
            for name in ("weight", "bias")
        ],
        ("model", None),
    )


def plain_mlp():
    """The same MLP in dicts and tuples."""

    def init(key):
        shapes = (3, 8), (8, 1)
        keys = jax.random.split(key)
        return [
            {"w": jax.random.normal(k, s), "b": jnp.zeros(s[1:])}
            for k, s in zip(keys, shapes, strict=True)
        ]

    start = init(jax.random.key(2))

    def network(features, is_training):
        del is_training
        one, two = kte.jax_params("mlp", lambda: start)
        hidden = jax.nn.relu(features @ one["w"] + one["b"])
        return hidden @ two["w"] + two["b"]

    return two_dense_layers(
        network,
        *((each["w"], each["b"]) for each in start),
        ["mlp/0/w", "mlp/0/b", "mlp/1/w", "mlp/1/b"],
        (None, "model"),
    )


NETWORKS = [nnx_resnet, equinox_mlp, plain_mlp]


@pytest.fixture(scope="module", params=NETWORKS, ids=lambda f: f.__name__)
def case(request):
    """One of the networks."""
    return request.param()


def batches(case):
    """Repeats one batch."""

    def input_fn(params):
        del params
        while True:
            yield case.features, LABELS

    return input_fn


def one_batch(case):
    return lambda params: iter([(case.features, LABELS)])


def adam():
    return keras.optimizers.Adam(0.01)


def trained(network, case, model_dir, steps=4, way="eight", split=None):
    """Returns an estimator that has trained on one core, eight, or four pairs.

    Pairs shard the optimizer state and one variable, according to the rule `split`.
    """
    rules = dict([split]) if way == "pairs" else None
    config = kte.RunConfig(
        model_dir=str(model_dir),
        tf_random_seed=7,
        save_summary_steps=None,
        tpu_config=kte.TPUConfig(
            iterations_per_loop=4,
            num_cores_per_replica=2 if way == "pairs" else None,
        ),
        shard_optimizer=way == "pairs",
        layout_map=rules,
    )
    estimator = kte.TPUEstimator(
        model_fn_of(network, adam),
        config=config,
        use_tpu=way != "one",
        train_batch_size=16,
        eval_batch_size=16,
        predict_batch_size=16,
    )
    estimator.train(batches(case), max_steps=steps)
    return estimator


def values_of(estimator):
    names = estimator.get_variable_names()
    return {name: estimator.get_variable_value(name) for name in names}


@pytest.fixture(scope="module")
def uninterrupted(case, tmp_path_factory):
    """An estimator that has trained for six steps in one call, on eight cores."""
    directory = tmp_path_factory.mktemp("straight")
    return trained(case.network, case, directory, 6)


@pytest.mark.parametrize("way", ["one", "eight", slow("pairs")])
def test_results_match_keras(case, tmp_path, way):
    rules = case.rule, case.keras_rule
    directories = tmp_path / "own", tmp_path / "keras"
    networks = case.network, case.in_keras
    own, in_keras = (
        trained(network, case, directory, 4, way, rule)
        for network, directory, rule in zip(networks, directories, rules, strict=True)
    )
    values, expected = values_of(own), values_of(in_keras)
    assert values.keys() >= set(case.names.values())
    for keras_name, name in case.names.items():
        value, wanted = values[name], expected[keras_name]
        # The kernels of equinox are transposed.
        wanted = wanted if value.shape == wanted.shape else wanted.T
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)
    (got,) = own.predict(one_batch(case), yield_single_examples=False)
    (want,) = in_keras.predict(one_batch(case), yield_single_examples=False)
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-5, atol=1e-5)
    losses = [each.evaluate(one_batch(case))["loss"] for each in (own, in_keras)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_another_estimator_continues_bit_for_bit(case, uninterrupted, tmp_path):
    trained(case.network, case, tmp_path, 3)
    resumed = trained(case.network, case, tmp_path, 6)
    values, expected = values_of(resumed), values_of(uninterrupted)
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def test_exports_predict_the_same(case, uninterrupted, tmp_path):
    import tensorflow as tf

    receiver = kte.export.build_raw_serving_input_receiver_fn({"x": case.features})

    def network(features, is_training):
        return case.network(features["x"], is_training)

    estimator = estimator_of(
        model_fn_of(network), uninterrupted.model_dir, export_to_tpu=False
    )
    folder = estimator.export_saved_model(tmp_path, receiver)
    serve = tf.saved_model.load(folder).signatures["serving_default"]
    (expected,) = uninterrupted.predict(one_batch(case), yield_single_examples=False)
    np.testing.assert_allclose(
        serve(x=tf.constant(case.features))["y"],
        expected["y"],
        rtol=1e-5,
        atol=1e-6,
    )
