"""Tests all forms of learning rates that `model_fn` computes."""

import functools
import json

import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf  # noqa: TID253 - a TF1 call that remains
from helpers import estimator_of, model_fn_of, regression_data, repeated
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator import EstimatorModel

X, Y = regression_data()
SGD = keras.optimizers.SGD


def inverse():
    """The rates 0.1, 0.05, 0.033, ... as a tensor of the global step."""
    return 0.1 / ops.cast(kte.get_global_step() + 1, "float32")


def of_tensor(**named):
    return SGD(inverse(), **named)


def of_keyword(**named):
    return SGD(learning_rate=inverse(), **named)


def of_closure(**named):
    rate = inverse()
    return SGD(lambda: rate, **named)


def of_function(**named):
    return SGD(inverse, **named)


def of_step(**named):
    return SGD(lambda step: 0.1 / ops.cast(step + 1, "float32"), **named)


def of_partial(**named):
    return SGD(functools.partial(lambda a, step: a / (step + 1), 0.1), **named)


def of_schedule(**named):
    return SGD(keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 1.0), **named)


def of_variable(**named):
    rate = keras.Variable(0.1, trainable=False, name="rate")
    return SGD(rate / ops.cast(kte.get_global_step() + 1, "float32"), **named)


FORMS = [
    of_tensor,
    of_keyword,
    of_closure,
    of_function,
    of_step,
    of_partial,
    of_schedule,
    of_variable,
]


def network(features, is_training):
    return keras.layers.Dense(1, kernel_initializer="zeros")(features)


def expected(rates):
    """The kernel and bias after steps at these rates."""
    kernel, bias = np.zeros((3, 1)), np.zeros(1)
    for rate in rates:
        error = 2 * (X @ kernel + bias - Y) / len(X)
        kernel, bias = kernel - rate * X.T @ error, bias - rate * error.sum(0)
    return kernel, bias


def train(optimizer, model_dir, steps=3, use_tpu=False, model_fn=None, **more):
    made = model_fn or model_fn_of(network, optimizer)
    estimator = estimator_of(made, model_dir, use_tpu, batch=64, **more)
    estimator.train(repeated(X, Y), steps=steps)
    return kte.checkpoints.read(estimator.latest_checkpoint())


@pytest.mark.parametrize("optimizer", FORMS)
def test_every_form_gives_the_same_results(optimizer, tmp_path) -> None:
    values = train(optimizer, tmp_path)
    kernel, bias = expected([0.1, 0.05, 0.1 / 3])
    np.testing.assert_allclose(values["dense/kernel"], kernel, rtol=1e-4)
    np.testing.assert_allclose(values["dense/bias"], bias, rtol=1e-4)


def test_every_form_gives_the_same_results_on_all_cores(tmp_path) -> None:
    def model_fn(features, labels, mode, params):
        losses, train_ops = [], []
        for form in FORMS:
            with keras.name_scope(form.__name__):
                y = network(features, True)
            own = kte.trainable_variables()[-2:]
            losses.append(ops.mean((y - labels) ** 2))
            optimizer = kte.CrossShardOptimizer(form(name=f"by_{len(losses)}"))
            train_ops.append(optimizer.minimize(losses[-1], var_list=own))
        return kte.TPUEstimatorSpec(mode, loss=sum(losses), train_op=train_ops)

    values = train(None, tmp_path, use_tpu=True, model_fn=model_fn)
    kernel, bias = expected([0.1, 0.05, 0.1 / 3])
    for form in FORMS:
        own = f"{form.__name__}/dense"
        np.testing.assert_allclose(
            values[f"{own}/kernel"], kernel, rtol=1e-4, err_msg=own
        )
        np.testing.assert_allclose(values[f"{own}/bias"], bias, rtol=1e-4, err_msg=own)


def test_rate_continues_after_training_stopped(tmp_path) -> None:
    train(of_tensor, tmp_path, steps=1)
    values = train(of_tensor, tmp_path, steps=2)
    kernel, _ = expected([0.1, 0.05, 0.1 / 3])
    np.testing.assert_allclose(values["dense/kernel"], kernel, rtol=1e-4)


def test_rate_from_the_batch_is_averaged_over_cores(tmp_path) -> None:
    def model_fn(features, labels, mode, params):
        y = network(features, True)
        loss = ops.mean((y - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(SGD(0.01 * ops.mean(labels**2)))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    values = train(None, tmp_path, 1, use_tpu=True, model_fn=model_fn)
    kernel, _ = expected([0.01 * np.mean(Y**2)])
    np.testing.assert_allclose(values["dense/kernel"], kernel, rtol=1e-4)


def test_micro_batches_and_given_gradients_use_the_rate(tmp_path) -> None:
    def model_fn(features, labels, mode, params):
        y = network(features, True)
        loss = ops.mean((y - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(SGD(inverse()))
        pairs = optimizer.compute_gradients(loss)
        return kte.TPUEstimatorSpec(
            mode, loss=loss, train_op=optimizer.apply_gradients(pairs)
        )

    values = train(None, tmp_path, model_fn=model_fn, config={"micro_batches": 4})
    kernel, _ = expected([0.1, 0.05, 0.1 / 3])
    np.testing.assert_allclose(values["dense/kernel"], kernel, rtol=1e-4)


def test_each_optimizer_has_its_own_rate(tmp_path) -> None:
    def model_fn(features, labels, mode, params):
        y = network(features, True)
        loss = ops.mean((y - labels) ** 2)
        kernel, bias = kte.trainable_variables()
        slow = kte.CrossShardOptimizer(SGD(inverse(), name="slow"))
        fast = kte.CrossShardOptimizer(SGD(0.1, name="fast"))
        ops_ = [
            fast.minimize(loss, var_list=[bias]),
            slow.minimize(loss, var_list=[kernel]),
        ]
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=ops_)

    values = train(None, tmp_path, 2, model_fn=model_fn)
    kernel, bias = np.zeros((3, 1)), np.zeros(1)
    for rate in (0.1, 0.05):
        error = 2 * (X @ kernel + bias - Y) / len(X)
        kernel, bias = kernel - rate * X.T @ error, bias - 0.1 * error.sum(0)
    np.testing.assert_allclose(values["dense/kernel"], kernel, rtol=1e-4)
    np.testing.assert_allclose(values["dense/bias"], bias, rtol=1e-4)


def test_rate_is_reported(tmp_path) -> None:
    made = model_fn_of(network, of_tensor)
    estimator = kte.TPUEstimator(
        made,
        config=kte.RunConfig(
            model_dir=str(tmp_path),
            tpu_config=kte.TPUConfig(iterations_per_loop=1),
            log_step_count_steps=1,
        ),
        use_tpu=False,
        train_batch_size=64,
    )
    estimator.train(repeated(X, Y), steps=3)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    rates = [json.loads(line).get("learning_rate") for line in lines]
    found = [rate for rate in rates if rate is not None]
    np.testing.assert_allclose(found, [0.1, 0.05, 0.1 / 3, 0.1 / 3], rtol=1e-5)


def test_rate_cannot_be_read_outside_model_fn() -> None:
    model = EstimatorModel.from_model_fn(model_fn_of(network, of_tensor))
    model.fit(X, Y, batch_size=64, verbose=0)
    with pytest.raises(ValueError, match="cannot be read outside model_fn"):
        _ = model.optimizer.learning_rate


@pytest.mark.parametrize(
    ("rate", "error", "message"),
    [
        (lambda: jnp.ones(3), ValueError, r"scalar. Received .* \(3,\)"),
        (lambda a, b: a, TypeError, r"no argument, .* \['a', 'b'\]"),
    ],
)
def test_invalid_rates_are_refused(rate, error, message, tmp_path) -> None:
    with pytest.raises(error, match=message):
        train(lambda: SGD(rate), tmp_path)


def test_tensorflow_decay_is_refused(tmp_path) -> None:
    def optimizer():
        step = kte.get_global_step()
        return SGD(tf.train.exponential_decay(0.1, step, 1, 0.5))

    with pytest.raises(TypeError, match="keras.optimizers.schedules"):
        train(optimizer, tmp_path)


def test_keras_checks_rates_outside_a_model_fn() -> None:
    with pytest.raises(ValueError, match="should be float"):
        SGD(jnp.float32(0.1))
