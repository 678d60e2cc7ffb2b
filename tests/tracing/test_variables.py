"""Tests that a model_fn's variables are found, created once, trained and saved."""

import functools
import inspect
import random
import re
import threading

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from helpers import (
    batches_of,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    repeated,
)
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.tracing.capture import capture
from keras_tpu_estimator.errors import TwoUnderOnePathError

X, Y = regression_data()


def names_after_training(network, model_dir, **settings):
    estimator = estimator_of(model_fn_of(network), model_dir, **settings)
    estimator.train(repeated(X, Y), steps=4)
    return estimator.get_variable_names()


def changed_by_training(network, model_dir):
    """The paths whose values differ between the first and last checkpoint."""
    estimator = estimator_of(model_fn_of(network), model_dir)
    estimator.train(repeated(X, Y), steps=4)
    first, last = (
        kte.checkpoints.read(f"{model_dir}/model.ckpt-{step}") for step in (0, 4)
    )
    return {p for p in last if not np.array_equal(first[p], last[p])}


def subclassed():
    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.inner = keras.layers.Dense(4)

        def call(self, x):
            return self.inner(x)

    return Block()


def functional():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(4)(inputs), name="net")


NETWORKS = {
    "dense": lambda x: keras.layers.Dense(4)(x),
    "conv": lambda x: keras.layers.Flatten()(keras.layers.Conv1D(2, 2)(x[..., None])),
    "lstm": lambda x: keras.layers.LSTM(4)(x[..., None]),
    "attention": lambda x: keras.layers.Flatten()(
        keras.layers.MultiHeadAttention(2, 2)(x[..., None], x[..., None])
    ),
    "sequential": lambda x: keras.Sequential(
        [keras.layers.Dense(4), keras.layers.LayerNormalization()]
    )(x),
    "functional": lambda x: functional()(x),
    "subclassed": lambda x: subclassed()(x),
    "remat": lambda x: jax.checkpoint(lambda x: keras.layers.Dense(4)(x))(x),
    "cond": lambda x: ops.cond(
        ops.sum(x) > -1e9,
        lambda: keras.layers.Dense(4, name="then")(x),
        lambda: keras.layers.Dense(4, name="else")(x),
    ),
}


def test_networks_train_every_variable(tmp_path):
    def network(x, is_training):
        hidden = []
        for name, each in NETWORKS.items():
            with keras.name_scope(name):
                hidden.append(each(x))
        return keras.layers.Dense(1, name="head")(ops.concatenate(hidden, -1))

    changed = changed_by_training(network, tmp_path)
    everything = set(kte.checkpoints.read(str(tmp_path)))
    assert {path.split("/")[0] for path in everything} > NETWORKS.keys()
    # Unused branches, unused seeds, and a key bias that softmax ignores do not change.
    idle = {p for p in everything if re.search("cond/else/|sgd/|/seed", p)}
    idle |= {"global_step", "attention/multi_head_attention/key/bias"}
    assert everything - idle <= changed


def test_batch_normalization_keeps_moving_averages(tmp_path):
    def network(x, is_training):
        x = keras.layers.BatchNormalization(momentum=0.5)(x, training=is_training)
        return keras.layers.Dense(1)(x)

    estimator = estimator_of(model_fn_of(network), tmp_path, batch=64)
    estimator.train(repeated(X, Y), steps=1)
    np.testing.assert_allclose(
        estimator.get_variable_value("batch_normalization/moving_mean"),
        0.5 * X.mean(0),
        rtol=1e-5,
        atol=1e-7,
    )


def test_bare_variables_with_and_without_names(tmp_path):
    values = [0.5, np.float32(0.5), np.full(3, 0.5), jnp.full(3, 0.5)]

    def network(x, is_training):
        for i, value in enumerate(values):
            scale = keras.Variable(value)
            shift = keras.Variable(value, name=f"shift{i}")
            x = x * scale.value + shift.value
        return keras.layers.Dense(1)(x)

    changed = changed_by_training(network, tmp_path)
    assert {"variable", "variable_1", "variable_2", "variable_3"} <= changed
    assert {"shift0", "shift1", "shift2", "shift3"} <= changed


def test_seed_of_a_bare_variable_comes_from_random_ops(tmp_path):
    def network(x, is_training):
        seed = keras.random.SeedGenerator(3)
        weight = keras.Variable(keras.random.normal((3, 1), seed=seed))
        return x @ weight.value

    assert "variable" in changed_by_training(network, tmp_path)


@pytest.mark.parametrize("built", [False, True])
def test_layer_built_outside_is_adopted(built, tmp_path):
    outside = keras.layers.Dense(1, name="outside")
    if built:
        outside.build((None, 3))
    changed = changed_by_training(lambda x, _: outside(x), tmp_path)
    assert {"outside/kernel", "outside/bias"} <= changed
    # The user's object holds the trained values.
    np.testing.assert_array_equal(
        np.asarray(outside.kernel.value),
        kte.load_variable(str(tmp_path), "outside/kernel"),
    )


def test_model_built_outside_is_adopted(tmp_path):
    inputs = keras.Input((3,), name="inputs")
    hidden = keras.layers.Dense(4, name="hidden")(inputs)
    hidden = keras.layers.BatchNormalization(name="norm")(hidden)
    backbone = keras.Model(inputs, hidden)
    before = [np.array(v.value) for v in backbone.variables]

    def network(x, is_training):
        return keras.layers.Dense(1)(backbone(x, training=is_training))

    changed = changed_by_training(network, tmp_path)
    assert {"hidden/kernel", "norm/gamma", "norm/moving_mean"} <= changed
    after = [np.array(v.value) for v in backbone.variables]
    assert all((a != b).any() for a, b in zip(before, after, strict=True))


def test_keras_may_donate_the_arrays_of_a_model_built_outside(tmp_path):
    outside = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    outside.compile("sgd", "mse")
    x, y = regression_data(examples=16)
    estimator = estimator_of(model_fn_of(lambda x, _: outside(x)), tmp_path)
    estimator.train(repeated(x, y), steps=2)
    expected = estimator.evaluate(batches_of(x, y))
    outside.fit(x, y, epochs=5, verbose=0)
    # The checkpoint determines the values, as in another process.
    assert estimator.evaluate(batches_of(x, y)) == expected
    outside.fit(x, y, verbose=0)
    estimator.train(repeated(x, y), steps=2)
    assert estimator.get_variable_value("global_step") == 4
    np.testing.assert_allclose(
        outside.evaluate(x, y, verbose=0),
        estimator.evaluate(batches_of(x, y))["loss"],
        rtol=1e-5,
    )


def test_frozen_model_built_outside_is_unchanged(tmp_path):
    frozen = keras.Sequential([keras.layers.Dense(4, name="frozen")])
    frozen.trainable = False
    frozen.build((None, 3))
    before = np.array(frozen.variables[0].value)

    def network(x, is_training):
        return keras.layers.Dense(1, name="head")(frozen(x))

    changed = changed_by_training(network, tmp_path)
    assert "head/kernel" in changed
    np.testing.assert_array_equal(frozen.variables[0].value, before)


@pytest.mark.parametrize("built", [False, True])
def test_layers_built_outside_do_not_use_up_names(built, tmp_path):
    keras.backend.clear_session(free_memory=False)
    outside = keras.layers.Dense(4)
    if built:
        outside.build((None, 3))
    assert outside.name == "dense"

    def network(x, is_training):
        return keras.layers.Dense(1)(outside(x))

    names = names_after_training(network, tmp_path)
    assert {"dense/kernel", "dense_1/kernel"} <= set(names)
    # Another estimator, after the layer is built, finds the same names.
    again = estimator_of(model_fn_of(network), tmp_path)
    again.evaluate(batches_of(X, Y))


def test_names_do_not_depend_on_earlier_layers_of_the_process(tmp_path):
    first = names_after_training(linear, tmp_path / "a")
    for _ in range(3):
        keras.layers.Dense(2)
    assert names_after_training(linear, tmp_path / "b") == first
    assert keras.layers.Dense(2).name != "dense"


def test_two_variables_with_one_path_are_an_error(tmp_path):
    def network(x, is_training):
        x = keras.layers.Dense(3, name="twice")(x)
        return keras.layers.Dense(3, name="twice")(x)

    estimator = estimator_of(model_fn_of(network), tmp_path)
    with pytest.raises(ValueError, match=r"'twice/kernel'.*another `name`"):
        estimator.train(repeated(X, Y), steps=1)


def test_shape_that_changed_since_the_checkpoint_is_an_error(tmp_path):
    def sized(size):
        def network(x, is_training):
            hidden = keras.layers.Dense(size, name="hidden")(x)
            return keras.layers.Dense(1, name="head")(hidden)

        return estimator_of(model_fn_of(network), tmp_path)

    sized(4).train(repeated(X, Y), steps=1)
    message = r"'head/kernel' has shape \(5, 1\) in model_fn, but \(4, 1\)"
    for call in (
        lambda e: e.train(repeated(X, Y), steps=1),
        lambda e: e.evaluate(batches_of(X, Y)),
        lambda e: list(e.predict(batches_of(X))),
    ):
        with pytest.raises(ValueError, match=message):
            call(sized(5))


def test_variable_that_the_checkpoint_lacks_is_an_error(tmp_path):
    estimator_of(model_fn_of(linear), tmp_path).train(repeated(X, Y), steps=1)

    def renamed(x, is_training):
        return keras.layers.Dense(1, name="other")(x)

    estimator = estimator_of(model_fn_of(renamed), tmp_path)
    with pytest.raises(ValueError, match="other/bias"):
        list(estimator.predict(batches_of(X)))


def test_layer_of_another_size_in_another_mode_is_an_error(tmp_path):
    def network(x, is_training):
        return keras.layers.Dense(2 if is_training else 1)(x)

    estimator = estimator_of(model_fn_of(network), tmp_path)
    estimator.train(repeated(X, Y), steps=1)
    with pytest.raises(ValueError, match=r"'dense/kernel' must have the same shape"):
        estimator.evaluate(batches_of(X, Y))


def test_leaked_tensor_is_an_error(tmp_path):
    leaked = []

    def network(x, is_training):
        leaked.append(x)
        return keras.layers.Dense(1)(leaked[0])

    estimator = estimator_of(model_fn_of(network), tmp_path)
    estimator.train(repeated(X, Y), steps=1)
    with pytest.raises(ValueError, match="Keep no tensors in globals") as error:
        estimator.evaluate(batches_of(X, Y))
    line = network.__code__.co_firstlineno + 2
    name = "test_leaked_tensor_is_an_error.<locals>.network"
    assert f"test_variables.py:{line} in `{name}`." in str(error.value)


def _kept_from_an_inner_function(kept, x):
    jax.jit(lambda y: kept.append(y + 1))(x)
    return x * kept[0]


def _kept_from_a_gradient(kept, x):
    def loss(y):
        kept.append(y * 3)
        return jnp.sum(y)

    jax.grad(loss)(x)
    return x * kept[0]


@pytest.mark.parametrize(
    "network", [_kept_from_an_inner_function, _kept_from_a_gradient]
)
def test_leak_error_names_the_line_of_the_use(network):
    lines, first = inspect.getsourcelines(network)
    place = rf"test_variables.py:{first + len(lines) - 1} in `_kept_from\w+`\."
    with pytest.raises(kte.errors.LeakedTensorError, match=f"used at .*{place}"):
        capture(functools.partial(network, []), {}, X)


def dropout_network(x, is_training):
    x = keras.layers.Dense(16)(x)
    x = keras.layers.Dropout(0.5)(x, training=is_training)
    return keras.layers.Dense(1)(x)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_seed_makes_two_runs_bit_equal(use_tpu, tmp_path):
    def run(directory, seed):
        estimator = estimator_of(
            model_fn_of(dropout_network), directory, use_tpu, seed=seed
        )
        estimator.train(repeated(X, Y), steps=4)
        return kte.checkpoints.read(estimator.latest_checkpoint())

    first, second = run(tmp_path / "a", 1), run(tmp_path / "b", 1)
    other = run(tmp_path / "c", 2)
    assert all(np.array_equal(first[p], second[p]) for p in first)
    assert not np.array_equal(first["dense/kernel"], other["dense/kernel"])


def test_seed_does_not_affect_random_numbers_of_other_threads():
    """An `input_fn` may shuffle while `model_fn` is traced."""
    drawn = []

    def function(x):
        thread = threading.Thread(target=lambda: drawn.append(random.random()))
        thread.start()
        thread.join()
        return keras.layers.Dense(2)(x)

    random.seed(11)
    captured = capture(function, {}, X, seed=5)
    drawn.append(random.random())
    python = random.Random(11)
    assert drawn == [python.random(), python.random()]
    (kernel,) = captured.initial_values(["dense/kernel"], {}, X).values()
    first = random.Random(5).randint(1, int(1e9))
    expected = keras.initializers.GlorotUniform(first)((3, 2))
    np.testing.assert_allclose(kernel, expected, rtol=1e-6)


def test_random_layers_differ_between_steps_and_cores(tmp_path):
    def model_fn(features, labels, mode, params):
        noisy = keras.layers.Dropout(0.5)(features, training=True)
        weight = keras.Variable(1.0)
        loss = ops.mean(noisy) * weight.value
        if mode == kte.ModeKeys.TRAIN:
            op = kte.CrossShardOptimizer(keras.optimizers.SGD(0.0))
            return kte.TPUEstimatorSpec(
                mode,
                loss=loss,
                train_op=op.minimize(loss),
                host_call=(seen.append, [noisy]),
            )

    seen = []
    estimator = estimator_of(model_fn, tmp_path, use_tpu=True, iterations=2)
    x = np.ones((16, 8), "float32")
    estimator.train(repeated(x, x[:, 0]), steps=4)
    masks = np.stack(seen)
    assert masks.shape == (4, 16, 8)
    assert len({mask.tobytes() for mask in masks}) == 4
    assert len({mask.tobytes() for mask in masks[0].reshape(8, -1)}) == 8


def test_initial_value_may_depend_on_the_first_batch():
    def function(x):
        return x * keras.Variable(ops.mean(x), name="mean").value

    x = np.full((2, 2), 3.0, "float32")
    captured = capture(function, {}, x)
    assert captured.initial_inputs == (0,)
    assert captured.initial_values({"mean"}, {}, {0: x}) == {"mean": 3.0}


def test_unused_variables_are_not_arguments():
    def function(x):
        keras.Variable(1.0, name="unused")
        return x + keras.Variable(1.0, name="used").value

    captured = capture(function, {}, np.float32(1))
    assert captured.paths == ("used",)
    assert set(captured.new) == {"unused", "used"}
    assert captured({"used": 2.0}, np.float32(1))[0] == 3.0


def test_plain_variable_works_after_a_capture():
    capture(lambda x: x + keras.Variable(1.0).value, {}, np.float32(1))
    assert float(keras.Variable(2.0).value) == 2.0
    with pytest.raises(ValueError, match="stateless scope"):
        with keras.StatelessScope():
            keras.Variable(2.0)


def test_error_for_duplicate_paths_names_the_path():
    def function():
        return [keras.Variable(1.0, name="a").value for _ in range(2)]

    with pytest.raises(TwoUnderOnePathError, match="'a'"):
        capture(function, {})


def test_duplicate_paths_of_unnamed_layers_are_explained():
    class Pair(keras.layers.Layer):
        def build(self, shape):
            self.both = [self.add_weight(name="w") for _ in range(2)]

        def call(self, x):
            return x * self.both[0] * self.both[1]

    with pytest.raises(TwoUnderOnePathError, match="'pair.*/w'"):
        capture(lambda x: Pair()(x), {}, np.ones((2, 2), "float32"))


def test_states_of_a_recurrent_layer_have_their_own_names():
    def function(x):
        return keras.layers.LSTM(2, stateful=True)(x)

    captured = capture(function, {}, np.ones((2, 3, 4), "float32"))
    states = {path for path in captured.new if "rnn_state" in path}
    assert states == {"lstm/rnn_state", "lstm/rnn_state_1"}


def test_losses_of_layers_are_those_of_this_call(tmp_path):
    def model_fn(features, labels, mode, params):
        layer = keras.layers.Dense(
            1,
            kernel_initializer="ones",
            kernel_regularizer=keras.regularizers.L2(0.5),
            activity_regularizer=keras.regularizers.L1(1.0),
        )
        layer(features)
        return kte.TPUEstimatorSpec(mode, loss=ops.sum(layer.losses))

    estimator = estimator_of(model_fn, tmp_path, batch=64)
    expected = 0.5 * 3 + np.abs(X.sum(1)).mean()
    result = estimator.evaluate(batches_of(X, Y))
    assert result["loss"] == pytest.approx(expected, rel=1e-5)


def test_mixed_precision_keeps_float32_variables(tmp_path):
    def network(x, is_training):
        policy = keras.DTypePolicy("mixed_bfloat16")
        x = keras.layers.Dense(4, dtype=policy)(x)
        assert x.dtype == jnp.bfloat16
        x = keras.layers.LayerNormalization(dtype=policy)(x)
        return ops.cast(keras.layers.Dense(1, dtype=policy)(x), "float32")

    estimator = estimator_of(model_fn_of(network), tmp_path)
    estimator.train(repeated(X, Y), steps=4)
    values = kte.checkpoints.read(estimator.latest_checkpoint())
    assert values["dense/kernel"].dtype == np.float32


def test_expressions_of_only_variables_are_not_constants(tmp_path):
    """Symbolic building computes these wrongly: huber, jnp, cond, weight decay."""

    def loss_fn(outputs, labels):
        huber = keras.losses.Huber()(labels, outputs)
        decay = sum(jnp.sum(v.value**2) for v in kte.trainable_variables())
        return huber + ops.cond(decay > 0, lambda: decay, lambda: -decay)

    def network(x, is_training):
        return keras.layers.Dense(1, use_bias=False, name="d")(x)

    def run(steps):
        model_fn = model_fn_of(network, loss_fn=loss_fn)
        estimator = estimator_of(model_fn, tmp_path / str(steps), batch=64)
        estimator.train(repeated(X, Y), steps=steps)
        return kte.load_variable(estimator.latest_checkpoint(), "d/kernel")

    trained = run(3)
    w = kte.load_variable(f"{tmp_path}/3/model.ckpt-0", "d/kernel")
    for _ in range(3):
        residual = X @ w - Y
        slope = np.clip(residual, -1, 1)
        w = w - 0.05 * (X.T @ slope / len(X) + 2 * w)
    np.testing.assert_allclose(trained, w, rtol=1e-5)
