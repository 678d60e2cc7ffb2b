"""Tests pytrees of arrays as variables: paths, dtypes, state and errors."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of, model_fn_of, regression_data, repeated

import keras_tpu_estimator as kte

X, Y = regression_data()


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["w", "b"],
    meta_fields=["activation"],
)
@dataclasses.dataclass
class Linear:
    """A layer in the style of JAX users."""

    w: jax.Array
    b: jax.Array
    activation: str = "none"


def init(key):
    """A pytree with all kinds of nodes."""
    return {
        "layers": [Linear(jax.random.normal(key, (3, 1)), jnp.zeros(1))],
        "a/b": (jnp.ones(3, "bfloat16"), None, "text", 2.5, jnp.tanh),
        "mask": np.arange(3),
        "flags": np.array([True, False]),
        "key": jax.random.key(7),
    }


def linear(features, is_training):
    del is_training
    p = kte.jax_params("net", init)
    layer = p["layers"][0]
    assert (p["a/b"][1:4], layer.activation) == ((None, "text", 2.5), "none")
    assert p["a/b"][4] is jnp.tanh
    assert p["a/b"][0].dtype == jnp.bfloat16
    noise = jax.random.normal(p["key"], ())
    return (
        (features * p["a/b"][0].astype("float32")) @ layer.w
        + layer.b
        + (0 * noise * p["flags"][0] * p["mask"][0])
    )


def trained(network, model_dir, steps=4, **settings):
    estimator = estimator_of(model_fn_of(network), model_dir, **settings)
    estimator.train(repeated(X, Y), steps=steps)
    return estimator


def values_of(estimator, prefix="net/"):
    return {
        name: estimator.get_variable_value(name)
        for name in estimator.get_variable_names()
        if name.startswith(prefix)
    }


def test_variables_have_the_paths_of_the_pytree(tmp_path):
    before = values_of(trained(linear, tmp_path, 1))
    after = values_of(trained(linear, tmp_path, 3))
    changed = {name: not np.array_equal(before[name], after[name]) for name in before}
    assert changed == {
        "net/a/b/0": True,
        "net/flags": False,
        "net/key": False,
        "net/layers/0/b": True,
        "net/layers/0/w": True,
        "net/mask": False,
    }
    dtypes = {name: str(value.dtype) for name, value in after.items()}
    assert dtypes["net/a/b/0"] == "bfloat16"
    assert dtypes["net/mask"] == "int32"
    assert dtypes["net/flags"] == "bool"
    assert dtypes["net/key"] == "uint32"


def test_seed_determines_initial_values(tmp_path):
    def first(name, seed):
        estimator = trained(linear, tmp_path / name, 1, seed=seed)
        return values_of(estimator)["net/layers/0/w"]

    np.testing.assert_array_equal(first("a", 1), first("b", 1))
    assert not np.array_equal(first("a", 1), first("c", 2))


@pytest.mark.parametrize(
    "made",
    [
        {"w": np.zeros((3, 1), "float64")},
        lambda: {"w": jnp.zeros((3, 1))},
        lambda key, scale=1.0: {"w": scale * jax.random.normal(key, (3, 1))},
    ],
)
def test_pytree_may_be_made_in_several_ways(made, tmp_path):
    def network(features, is_training):
        return features @ kte.jax_params("net", made)["w"]

    estimator = trained(network, tmp_path)
    assert list(values_of(estimator)) == ["net/w"]
    assert estimator.get_variable_value("net/w").dtype == "float32"


def test_scopes_prefix_names_with_slashes(tmp_path):
    def network(features, is_training):
        made = {"w": jnp.zeros((3, 1))}
        with kte.variable_scope("outer"):
            p = kte.jax_params("inner/net", made)
            state = kte.jax_params("seen", {"n": jnp.int32(0)})
            kte.assign_jax_params("seen", {"n": state["n"] + 1})
        return features @ p["w"]

    estimator = trained(network, tmp_path)
    assert list(values_of(estimator, "outer")) == [
        "outer/inner/net/w",
        "outer/seen/n",
    ]
    assert estimator.get_variable_value("outer/seen/n") == 4


@pytest.mark.parametrize("trainable", [True, False, {"w": True, "b": False}])
def test_trainable_selects_variables(trainable, tmp_path):
    def network(features, is_training):
        made = {"w": jnp.zeros((3, 1)), "b": {"c": jnp.zeros(1)}}
        p = kte.jax_params("net", made, trainable)
        outputs = features @ p["w"] + p["b"]["c"]
        return outputs + keras.layers.Dense(1)(features)

    values = values_of(trained(network, tmp_path))
    is_trained = {name: bool(np.any(value)) for name, value in values.items()}
    both = trainable is True
    assert is_trained == {"net/b/c": both, "net/w": trainable is not False}


def averaging(features, is_training):
    """A model with a moving average and a counter, which each step updates."""
    p = kte.jax_params("net", {"w": jnp.zeros((3, 1))})
    start = {"mean": jnp.zeros(3), "count": jnp.int32(0)}
    state = kte.jax_params("state", start, trainable=False)
    if is_training:
        state = {
            "mean": 0.9 * state["mean"] + 0.1 * features.mean(0),
            "count": state["count"] + 1,
        }
        kte.assign_jax_params("state", state)
    return (features - state["mean"]) @ p["w"]


@pytest.mark.parametrize("use_tpu", [False, True])
def test_state_is_kept_and_averaged_over_the_cores(use_tpu, tmp_path):
    estimator = trained(averaging, tmp_path, 3, use_tpu=use_tpu)
    assert estimator.get_variable_value("state/count") == 3
    mean = np.zeros(3)
    for start in (0, 16, 32):
        mean = 0.9 * mean + 0.1 * X[start : start + 16].mean(0)
    got = estimator.get_variable_value("state/mean")
    np.testing.assert_allclose(got, mean, rtol=1e-5, atol=1e-7)
    w = estimator.get_variable_value("net/w")
    (batch,) = estimator.predict(batches_of(X[:16]), yield_single_examples=False)
    np.testing.assert_allclose(batch["y"], (X[:16] - got) @ w, rtol=1e-5, atol=1e-6)


def test_state_in_evaluation_lasts_for_the_call(tmp_path):
    def network(features, is_training):
        w = kte.jax_params("net", {"w": jnp.zeros((3, 1))})["w"]
        seen = kte.jax_params("seen", {"n": jnp.float32(0)}, False)
        kte.assign_jax_params("seen", {"n": seen["n"] + 1})
        return features @ w * 0 + seen["n"]

    estimator = trained(network, tmp_path, 2)
    got = list(estimator.predict(batches_of(X[:48])))
    assert [each["y"][0] for each in got[::16]] == [2, 3, 4]
    assert estimator.get_variable_value("seen/n") == 2


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_differ_between_cores_and_steps(impl, tmp_path):
    def network(features, is_training):
        w = kte.jax_params("net", {"w": jnp.zeros((3, 1))})["w"]
        made = {"key": jax.random.key(0, impl=impl)}
        key, own = jax.random.split(kte.jax_params("noise", made)["key"])
        kte.assign_jax_params("noise", {"key": key})
        return features @ w * 0 + jax.random.normal(own, (len(features), 1))

    estimator = trained(network, tmp_path, 1, use_tpu=True)
    noise = [each["y"][0] for each in estimator.predict(batches_of(X[:32]))]
    # Two steps on eight cores with two rows each.
    assert len(set(noise)) == 32
    # The first call uses the seeds of the checkpoint, and later calls use others.
    assert not set(noise) & set(drawn(estimator))
    assert drawn(estimator, seed=3) == drawn(estimator, seed=3)


def drawn(estimator, **settings):
    predicted = estimator.predict(batches_of(X[:32]), **settings)
    return [row["y"][0] for row in predicted]


def test_reused_scopes_share_variables(tmp_path):
    def tower(features):
        with kte.variable_scope("tower", reuse=kte.AUTO_REUSE):
            return features @ kte.jax_params("net", {"w": jnp.ones((3, 1))})["w"]

    estimator = trained(lambda x, _: tower(x) + tower(-x), tmp_path, 1)
    assert list(values_of(estimator, "tower")) == ["tower/net/w"]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_gradients_clipping_and_micro_batches(micro_batches, tmp_path):
    def model_fn(features, labels, mode, params):
        p = kte.jax_params("net", {"w": jnp.zeros((3, 1)), "b": jnp.zeros(1)})
        loss = jnp.mean((features @ p["w"] + p["b"] - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        pairs = optimizer.compute_gradients(loss)
        assert [v.path for _, v in pairs] == ["net/b", "net/w"]
        return kte.TPUEstimatorSpec(
            mode, loss=loss, train_op=optimizer.apply_gradients(pairs)
        )

    estimator = estimator_of(
        model_fn, tmp_path, True, config={"micro_batches": micro_batches}
    )
    estimator.train(repeated(X, Y), steps=1)
    gradient = -2 * (X[:16] * Y[:16]).mean(0)[:, None]
    np.testing.assert_allclose(
        estimator.get_variable_value("net/w"), -0.1 * gradient, rtol=1e-5
    )


@pytest.mark.parametrize("use_tpu", [False, True])
def test_variables_made_inside_a_nested_trace(use_tpu, tmp_path):
    def init(key):
        return {"w": jax.random.normal(key, (3, 1)), "key": key}

    def apply(features):
        p = kte.jax_params("net", init)
        return features @ p["w"] + 0 * jax.random.normal(p["key"], ())

    def values(name, network):
        directory = tmp_path / name
        return values_of(trained(network, directory, 2, use_tpu=use_tpu))

    def made_per_call(features, is_training):
        # JAX caches the traces of equal functions.
        return jax.checkpoint(lambda x: apply(x))(features)

    expected = values("plain", lambda features, _: apply(features))
    again = values("again", made_per_call)
    for name, value in expected.items():
        np.testing.assert_allclose(again[name], value, rtol=1e-6)
    assert again.keys() == expected.keys()


def failing(tmp_path, build):
    """Trains a model_fn that calls `build`."""

    def network(features, is_training):
        build()
        return keras.layers.Dense(1)(features)

    trained(network, tmp_path, 1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: kte.jax_params("", {"w": jnp.ones(1)}), "`name` must be"),
        (lambda: kte.jax_params("n", {"w": 1.0}), "with arrays"),
        (lambda: kte.jax_params("n", lambda: {}), "with arrays"),
        (
            lambda: kte.jax_params("n", {"w": jnp.ones(1)}, {"v": True}),
            "a pytree prefix of both for `init`",
        ),
        (
            lambda: kte.jax_params("n", {"w": jnp.ones(1)}, "w"),
            "must contain only True and False",
        ),
        (
            lambda: kte.jax_params("n", {"w": jnp.ones(1, "complex64")}),
            "complex64 of shape .1,. at 'n/w'",
        ),
        (
            lambda: kte.jax_params("n", {"a": {"b": jnp.ones(1)}, "a/b": X}),
            "two variables with the path 'n/a/b'",
        ),
        (
            lambda: (
                kte.jax_params("net", {"mean": jnp.ones(1)}),
                kte.assign_jax_params("net", {"maen": jnp.ones(1)}),
            ),
            "'net/maen', which .* Did you mean 'net/mean'",
        ),
        (
            lambda: (
                kte.jax_params("net", {"mean": jnp.ones(1)}),
                kte.assign_jax_params("net", {"mean": jnp.ones(2)}),
            ),
            r"'net/mean' must have its shape \(1,\)",
        ),
    ],
)
def test_invalid_calls_are_errors(build, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        failing(tmp_path, build)


@pytest.mark.parametrize("function", [kte.jax_params, kte.assign_jax_params])
def test_variables_outside_a_model_fn_are_an_error(function):
    with pytest.raises(ValueError, match="outside a model_fn"):
        function("net", {"w": jnp.ones(1)})


def test_errors_of_init_are_raised_unchanged(tmp_path):
    def init(key):
        raise OSError("no such weights")

    with pytest.raises(OSError, match="no such weights"):
        failing(tmp_path, lambda: kte.jax_params("net", init))


def test_different_trained_values_on_each_core_are_an_error(tmp_path):
    def network(features, is_training):
        p = kte.jax_params("net", {"w": jnp.zeros((3, 1))})
        kte.assign_jax_params("net", {"w": p["w"] + features[0, 0]})
        return features @ p["w"]

    with pytest.raises(ValueError, match="on each core separately"):
        trained(network, tmp_path, 1, use_tpu=True)


def test_error_without_trained_variables_names_jax_params(tmp_path):
    w = jnp.zeros((3, 1))
    with pytest.raises(ValueError, match=r"kte.jax_params\(name, init\)"):
        trained(lambda features, _: features @ w, tmp_path, 1)


def export_of_layers(estimator, folder):
    receiver = kte.export.build_raw_serving_input_receiver_fn({"x": X})
    estimator.export_saved_model(folder, receiver)


def keras_file(estimator, folder):
    kte.export_keras(estimator, folder.with_suffix(".keras"), {"x": X})


@pytest.mark.parametrize("export", [export_of_layers, keras_file])
def test_exports_that_need_keras_layers_are_refused(tmp_path, export):
    trained(linear, tmp_path, 1)
    estimator = estimator_of(
        model_fn_of(lambda x, is_training: linear(x["x"], is_training)),
        tmp_path,
        config={"export_backend": "tensorflow"},
    )
    message = "Received: `jax_params` at .*has an operation.*export_backend='jax'"
    with pytest.raises(ValueError, match=message) as why:
        export(estimator, tmp_path / "export")
    assert "outside a model_fn" not in str(why.value)
    assert not [*tmp_path.glob("export*")]
