"""Tests optax optimizers: results, state names, reports and resuming."""

import json
import types

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from helpers import estimator_of, model_fn_of, regression_data, repeated, slow

import keras_tpu_estimator as kte
from keras_tpu_estimator import EstimatorModel

optax = pytest.importorskip("optax", reason="optax is not installed")

X, Y = regression_data(size=8)
START = {
    "net": {
        "w": np.linspace(-1, 1, 128).reshape(8, 16).astype("float32"),
        "b": np.zeros(16, "float32"),
        "out": np.linspace(1, -1, 16)[:, None].astype("float32"),
    }
}


def forward(p, x):
    return jnp.tanh(x @ p["w"] + p["b"]) @ p["out"]


def network(features, is_training):
    del is_training
    return forward(kte.jax_params("net", START["net"]), features)


def warm_up():
    return optax.linear_schedule(0.0, 0.1, 10)


def only_weights(params):
    return jax.tree.map(lambda each: each.ndim > 1, params)


MAKE = {
    "adamw": lambda: optax.adamw(0.05, mask=only_weights),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(warm_up())),
    "injected": lambda: optax.inject_hyperparams(optax.sgd)(
        learning_rate=warm_up(), momentum=0.9
    ),
    "multi_steps": lambda: optax.MultiSteps(optax.adam(0.05), 2),
    "narrow": lambda: optax.adam(0.05, mu_dtype="bfloat16"),
    "noise": lambda: optax.chain(optax.add_noise(0.1, 0.5, 3), optax.sgd(0.1)),
    "plateau": lambda: optax.chain(
        optax.sgd(0.1), optax.contrib.reduce_on_plateau(0.5, patience=1)
    ),
    "polyak": lambda: optax.polyak_sgd(0.1),
    "parts": lambda: optax.multi_transform(
        {"none": optax.set_to_zero(), "adam": optax.adam(0.05)},
        {"net": {"w": "adam", "b": "none", "out": "adam"}},
    ),
}


def by_hand(name, steps):
    """The parameters and state after plain optax steps."""
    tx = MAKE[name]()
    params = START
    state = tx.init(params)
    for number in range(steps):
        rows = slice(16 * (number % 4), 16 * (number % 4) + 16)

        def loss(params, x=X[rows], y=Y[rows]):
            return jnp.mean((forward(params["net"], x) - y) ** 2)

        value, gradient = jax.value_and_grad(loss)(params)
        tx = optax.with_extra_args_support(tx)
        updates, state = tx.update(gradient, state, params, value=value)
        params = optax.apply_updates(params, updates)
    return params, state


def trained(make, model_dir, steps=6, use_tpu=False, **config):
    estimator = estimator_of(
        model_fn_of(network, make), model_dir, use_tpu, config=config
    )
    estimator.train(repeated(X, Y), max_steps=steps)
    return estimator


def values_of(estimator):
    names = estimator.get_variable_names()
    return {name: estimator.get_variable_value(name) for name in names}


WAYS = {
    "one": {},
    "eight": {"use_tpu": True},
    "shared": {"use_tpu": True, "shard_optimizer": True},
    "micro": {"micro_batches": 2},
}


# Optimizers that accumulate rounding errors.
LOOSE = {"narrow": 0.05, "noise": 1e-3}


@pytest.mark.rows(5)
@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, "one") for name in MAKE),
        *((n, w) for n in ("chain", "parts") for w in ("eight", "shared")),
        *((name, "eight") for name in ("plateau", "polyak")),
        ("polyak", "micro"),
        slow("multi_steps", "eight"),
        slow("multi_steps", "shared"),
        slow("noise", "eight"),
    ],
)
def test_results_match_optax(name, way, tmp_path):
    values = values_of(trained(MAKE[name], tmp_path, **WAYS[way]))
    tolerance = LOOSE.get(name, 1e-4)
    params, state = by_hand(name, 6)
    for path, expected in params["net"].items():
        np.testing.assert_allclose(
            values[f"net/{path}"], expected, rtol=tolerance, atol=tolerance
        )
    kept = [each for each in values if each.startswith("optax/")]
    assert len(kept) == len(jax.tree.leaves(state)) + 1
    assert values["optax/iteration"] == 6


def test_state_has_the_paths_of_the_variables(tmp_path):
    make = MAKE["chain"]
    values = values_of(trained(make, tmp_path))
    _, state = by_hand("chain", 6)
    adam, schedule = state[1][0], state[1][1]
    assert values["optax/count"] == adam.count
    assert values["optax/count_1"] == schedule.count
    for slot in ("mu", "nu"):
        for path, expected in getattr(adam, slot)["net"].items():
            np.testing.assert_allclose(
                values[f"optax/{slot}/net/{path}"],
                expected,
                rtol=1e-3,
                atol=1e-6,
            )


@pytest.mark.rows(5)
@pytest.mark.parametrize("name", MAKE)
def test_another_estimator_continues_bit_for_bit(name, tmp_path):
    def batch(params):
        while True:
            yield X[:16], Y[:16]

    def train(directory, *until):
        for steps in until:
            estimator = estimator_of(
                model_fn_of(network, MAKE[name]), tmp_path / directory
            )
            estimator.train(batch, max_steps=steps)
        return values_of(estimator)

    straight, resumed = train("a", 5), train("b", 3, 5)
    assert straight.keys() == resumed.keys()
    for path, value in straight.items():
        np.testing.assert_array_equal(resumed[path], value, err_msg=path)


@pytest.mark.parametrize(
    ("name", "rates"),
    [("injected", [0.0, 0.01, 0.02]), ("chain", [np.nan] * 3)],
)
def test_learning_rates_are_reported_if_optax_has_them(name, rates, tmp_path):
    estimator = estimator_of(
        model_fn_of(network, MAKE[name]),
        tmp_path,
        iterations=1,
        log_step_count_steps=1,
        save_summary_steps=100,
    )
    estimator.train(repeated(X, Y), steps=3)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    # The last line repeats the numbers of the last step.
    got = [json.loads(line).get("learning_rate", np.nan) for line in lines[:-1]]
    np.testing.assert_allclose(got, rates, atol=1e-7)


def test_two_optimizers_by_name(tmp_path):
    def model_fn(features, labels, mode, params):
        p = kte.jax_params("net", START["net"])
        loss = jnp.mean((forward(p, features) - labels) ** 2)
        of_name = {v.path: v for v in kte.trainable_variables()}
        out = of_name.pop("net/out")
        rest = kte.optimizers.Optax(optax.adam(0.01), name="rest")
        ops = [
            kte.CrossShardOptimizer(optax.sgd(0.1, 0.9)).minimize(loss, var_list=[out]),
            kte.minimize(rest, loss, var_list=[*of_name.values()]),
        ]
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=ops)

    estimator = estimator_of(model_fn, tmp_path, use_tpu=True)
    estimator.train(repeated(X, Y), steps=2)
    names = estimator.get_variable_names()
    assert {each for each in names if not each.startswith("net")} == {
        "global_step",
        "optax/iteration",
        "optax/trace/net/out",
        "rest/count",
        "rest/iteration",
        *(f"rest/{s}/net/{v}" for s in ("mu", "nu") for v in ("w", "b")),
    }


def test_custom_gradients_and_slots(tmp_path):
    made = []

    def model_fn(features, labels, mode, params):
        outputs = network(features, True)
        loss = jnp.mean((outputs - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(optax.adam(0.05))
        pairs = optimizer.compute_gradients(loss)
        made[:] = [optimizer, pairs[0][1]]
        return kte.TPUEstimatorSpec(
            mode, loss=loss, train_op=optimizer.apply_gradients(pairs)
        )

    estimator = estimator_of(model_fn, tmp_path, use_tpu=True)
    estimator.train(repeated(X, Y), steps=3)
    params, _ = _adam_by_hand(3)
    np.testing.assert_allclose(
        estimator.get_variable_value("net/w"), params["net"]["w"], rtol=1e-4
    )
    optimizer, variable = made
    assert optimizer.get_slot_names() == ["mu", "nu"]
    slot = optimizer.get_slot(variable, "m")
    assert slot is optimizer.get_slot(variable, "mu")
    assert slot.path == f"optax/mu/{variable.path}"
    assert optimizer.get_slot(variable, "trace") is None


def _adam_by_hand(steps):
    MAKE["adam"] = lambda: optax.adam(0.05)
    try:
        return by_hand("adam", steps)
    finally:
        del MAKE["adam"]


def test_callbacks_find_and_set_the_rate(tmp_path):
    def rates(make, **fit):
        model = EstimatorModel.from_model_fn(model_fn_of(network, make))
        model.fit(X, Y, batch_size=16, epochs=2, verbose=0, **fit)
        return model.optimizer

    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    optimizer = rates(
        lambda: optax.inject_hyperparams(optax.sgd)(learning_rate=0.1),
        callbacks=[halve],
    )
    assert float(optimizer.learning_rate.value) == pytest.approx(0.025)
    with pytest.raises(ValueError, match="inject_hyperparams"):
        rates(lambda: optax.sgd(0.1)).learning_rate = 0.5


def test_layers_of_keras_with_constraints(tmp_path):
    def dense(features, is_training):
        return keras.layers.Dense(1, kernel_constraint=keras.constraints.NonNeg())(
            features
        )

    estimator = estimator_of(
        model_fn_of(dense, lambda: optax.sgd(1.0)), tmp_path, use_tpu=True
    )
    estimator.train(repeated(X, Y), steps=3)
    assert (estimator.get_variable_value("dense/kernel") >= 0).all()


@pytest.mark.parametrize("wrong", [optax.adam, types.SimpleNamespace(init=1)])
def test_invalid_optimizers_are_refused(wrong):
    with pytest.raises(TypeError, match="one of optax, or an object"):
        kte.CrossShardOptimizer(wrong)
    with pytest.raises(TypeError, match="`init` and `update`"):
        kte.optimizers.Optax(wrong)


def test_paths_that_are_prefixes_of_others_are_refused(tmp_path):
    def nested(features, is_training):
        one = kte.jax_params("w", jnp.zeros((8, 1)))
        return features @ (one + kte.jax_params("w/b", jnp.zeros(1)))

    with pytest.raises(ValueError, match="Received: 'w/b'"):
        estimator_of(model_fn_of(nested, lambda: optax.sgd(0.1)), tmp_path).train(
            repeated(X, Y), steps=1
        )
