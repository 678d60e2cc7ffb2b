"""Tests that rematerialization gives the same results in less memory."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from helpers import estimator_of, regression_data, repeated, slow
from jax.extend import core as jex
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator import EstimatorModel
from keras_tpu_estimator.base.mesh.all_cores import all_cores
from keras_tpu_estimator.base.mesh.cores import ONE_CORE
from keras_tpu_estimator.base.tracing.rematerialization import rematerialized

X, Y = regression_data()
MODES = ["activations", "full"]


def mlp(x):
    for _ in range(2):
        x = keras.layers.Dense(4, activation="gelu")(x)
    return x


def in_a_row(x):
    """Sequential layers with an effect, a reduction, state and random numbers."""
    x = x - kte.cross_replica_mean(ops.mean(x))
    jax.debug.callback(lambda x: None, x)
    x = keras.layers.BatchNormalization()(mlp(x), training=True)
    return keras.layers.Dropout(0.5)(x, training=True)


def side_by_side(x):
    """Parallel layers with a loop, a convolution and several products."""
    x = x[..., None]
    attention = keras.layers.MultiHeadAttention(2, 2, dropout=0.1)
    return ops.concatenate(
        [
            keras.layers.LSTM(4)(x),
            keras.layers.Flatten()(keras.layers.Conv1D(2, 2)(x)),
            keras.layers.Flatten()(attention(x, x, training=True)),
        ],
        axis=-1,
    )


def model_of(network, requests=False):
    def model_fn(features, labels, mode, params):
        outputs = keras.layers.Dense(1)(network(features))
        loss = ops.mean((outputs - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.05))
        if requests:
            pairs = optimizer.compute_gradients(loss)
            train_op = optimizer.apply_gradients(pairs)
        else:
            train_op = optimizer.minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def prepared(model_fn, remat, cores=ONE_CORE, micro_batches=1):
    """A training step and its initial values."""
    config = kte.RunConfig(remat=remat, micro_batches=micro_batches)
    model = EstimatorModel.from_model_fn(model_fn, None, config, cores, seed=7)
    step = model.prepare("train", X, Y)
    return step.function, model.program.store.initial_values


def check_same(model_fn, cores, micro_batches=1):
    """Checks that a step has the same results with every mode."""
    step, initial_values = prepared(model_fn, None, cores)
    others = [prepared(model_fn, each, cores, micro_batches) for each in MODES]

    @jax.jit
    def run(values):
        steps = (step, *(other for other, _ in others))
        return [each(values, X, Y)[0] for each in steps]

    expected, *changed = run(initial_values())
    for each in changed:
        assert_close(each, expected)


def assert_close(values, expected):
    assert values.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(values[path], value, rtol=1e-5, atol=1e-6)


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("network", "use_tpu"),
    [
        *(slow(in_a_row, False), (in_a_row, True)),
        *((side_by_side, False), slow(side_by_side, True)),
    ],
)
def test_results_are_the_same(network, use_tpu):
    check_same(model_of(network), all_cores() if use_tpu else ONE_CORE)


def test_rematerialization_with_requests_and_micro_batches():
    check_same(model_of(mlp, requests=True), all_cores(), micro_batches=2)


def primitives(jaxpr):
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for part in jex.jaxprs_in_params(equation.params):
            yield from primitives(part)


@pytest.mark.parametrize("remat", [None, *MODES])
def test_training_step_has_checkpoints(remat):
    step, initial_values = prepared(model_of(mlp), remat)
    traced = jax.make_jaxpr(step)(initial_values(), X, Y)
    names = set(primitives(traced.jaxpr))
    assert bool(names & {"checkpoint", "remat", "remat2"}) == bool(remat)


def bytes_kept(remat):
    """Returns the residuals of 36 layers, in multiples of those of one."""

    def function(weights, x):
        for weight in weights:
            x = jax.nn.gelu(x @ weight)
        return jnp.sum(x)

    weights, x = [np.ones((8, 8), "float32")] * 36, np.ones((512, 8), "float32")
    traced = jax.make_jaxpr(function)(weights, x)
    if remat is not None:
        traced = rematerialized(traced, remat)
    pull_back = jax.eval_shape(
        lambda *args: jax.vjp(jex.jaxpr_as_fun(traced), *args)[1], *weights, x
    )
    kept = sum(leaf.size for leaf in jax.tree.leaves(pull_back))
    return (kept - sum(w.size for w in weights)) / x.size


def test_few_values_are_kept_for_the_backward_pass():
    assert bytes_kept(None) > 3 * 36
    # One product for each layer.
    assert 36 <= bytes_kept("activations") < 39
    # One tensor at each border between sqrt(n) segments.
    assert bytes_kept("full") < 30


def test_segments_end_where_one_tensor_is_alive():
    """All values that are alive across a border are stored, so borders matter."""

    def function(x):
        for _ in range(20):
            x = jnp.sin(x) * jnp.cos(x)
        return x

    traced = rematerialized(jax.make_jaxpr(function)(np.ones(9)), "full")
    assert len(traced.jaxpr.eqns) >= 6
    assert all(len(e.outvars) == 1 for e in traced.jaxpr.eqns)


def test_effects_happen_once():
    calls = []

    def network(x):
        x = mlp(x)
        jax.debug.callback(lambda: calls.append(1))
        return mlp(x)

    step, initial_values = prepared(model_of(network), "full")
    jax.jit(step)(initial_values(), X, Y)
    jax.effects_barrier()
    assert len(calls) == 1


def test_estimator_trains_with_rematerialization(tmp_path):
    values = []
    for remat in (None, "full"):
        estimator = estimator_of(
            model_of(mlp), tmp_path / str(remat), config={"remat": remat}
        )
        estimator.train(repeated(X, Y), steps=8)
        values.append(estimator.get_variable_value("dense/kernel"))
    np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-6)
