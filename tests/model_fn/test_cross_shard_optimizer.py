"""Tests optimizers and gradients against results derived by hand."""

import json

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from helpers import estimator_of, regression_data, repeated, slow
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator import EstimatorModel
from keras_tpu_estimator.base.mesh.all_cores import all_cores
from keras_tpu_estimator.base.mesh.cores import ONE_CORE

X, Y = regression_data()
RATE = 0.1


def train_once(model_fn, model_dir, steps=1, use_tpu=False):
    """Returns the variables after steps that each use all examples."""
    estimator = estimator_of(model_fn, model_dir, use_tpu, batch=64)
    estimator.train(repeated(X, Y), steps=steps)
    return kte.checkpoints.read(estimator.latest_checkpoint())


def weights():
    """The initial weights of the models here."""
    return np.array([[1.0], [-1.0], [0.5]], "float32")


def outputs_of(features):
    weight = keras.Variable(weights(), name="w")
    return weight, features @ weight.value


def loss_gradient(w, x=X, y=Y):
    return 2 * x.T @ (x @ w - y) / len(x)


def spec_of(mode, loss, train_op):
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def minimizing(optimizer, penalty=None, **kwargs):
    def model_fn(features, labels, mode, params):
        weight, outputs = outputs_of(features)
        loss = ops.mean((outputs - labels) ** 2)
        if penalty is not None:
            loss = loss + penalty(weight)
        wrapped = kte.CrossShardOptimizer(optimizer(), **kwargs)
        return spec_of(mode, loss, wrapped.minimize(loss))

    return model_fn


def test_adam_step_equals_numpy(tmp_path):
    rate, b1, b2, epsilon = 0.01, 0.9, 0.999, 1e-7
    w, m, v = weights().astype("float64"), 0.0, 0.0
    for t in (1, 2, 3):
        g = loss_gradient(w)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        scaled = rate * np.sqrt(1 - b2**t) / (1 - b1**t)
        w = w - scaled * m / (np.sqrt(v) + epsilon)
    values = train_once(
        minimizing(lambda: keras.optimizers.Adam(rate)), tmp_path, steps=3
    )
    np.testing.assert_allclose(values["w"], w, rtol=2e-5)
    assert values["adam/iteration"] == values["global_step"] == 3


def test_weight_decay_sums_over_variables(tmp_path):
    def decay(weight):
        return 0.5 * sum(ops.sum(v.value**2) for v in kte.trainable_variables())

    values = train_once(
        minimizing(lambda: keras.optimizers.SGD(RATE), decay), tmp_path, 2
    )
    w = weights()
    for _ in range(2):
        w = w - RATE * (loss_gradient(w) + w)
    np.testing.assert_allclose(values["w"], w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_schedule_counts_steps(use_tpu, tmp_path):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [RATE, RATE / 2])
    values = train_once(
        minimizing(lambda: keras.optimizers.SGD(schedule)), tmp_path, 2, use_tpu
    )
    w = weights()
    for rate in (RATE, RATE / 2):
        w = w - rate * loss_gradient(w)
    np.testing.assert_allclose(values["w"], w, rtol=1e-5)


def test_global_step_is_a_tensor_in_model_fn(tmp_path):
    def rate():
        return RATE / ops.cast(kte.get_global_step() + 1, "float32")

    values = train_once(minimizing(lambda: keras.optimizers.SGD(rate)), tmp_path, 2)
    w = weights()
    for step in range(2):
        w = w - RATE / (step + 1) * loss_gradient(w)
    np.testing.assert_allclose(values["w"], w, rtol=1e-5)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_clipping_by_global_norm(use_tpu, tmp_path):
    def model_fn(features, labels, mode, params):
        _, outputs = outputs_of(features)
        bias = keras.Variable([2.0], name="b")
        loss = ops.mean((outputs + bias.value - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(RATE))
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
        gradients = [kte.cross_replica_sum(g) for g in gradients]
        norm = ops.sqrt(sum(ops.sum(g**2) for g in gradients))
        replicas = params["context"].num_replicas if use_tpu else 1
        clipped = [g / ops.maximum(norm, 1.0) / replicas for g in gradients]
        pairs = zip(clipped, variables, strict=True)
        return spec_of(mode, loss, optimizer.apply_gradients(pairs))

    values = train_once(model_fn, tmp_path, use_tpu=use_tpu)
    residual = X @ weights() + 2 - Y
    gw, gb = 2 * X.T @ residual / len(X), 2 * residual.mean(0)
    norm = np.sqrt((gw**2).sum() + (gb**2).sum())
    assert norm > 1
    np.testing.assert_allclose(values["w"], weights() - RATE * gw / norm, rtol=1e-5)
    np.testing.assert_allclose(values["b"], 2 - RATE * gb / norm, rtol=1e-5)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_two_optimizers_train_a_small_gan(use_tpu, tmp_path):
    d0, g0 = np.float32([[0.3], [0.2], [-0.4]]), np.float32([1.0, 2.0, -1.0])

    def losses(d, g, real):
        fake = real[:, ::-1] * g
        d_real, d_fake = real @ d, fake @ d
        d_loss = jnp.mean(jax.nn.softplus(-d_real) + jax.nn.softplus(d_fake))
        return d_loss, jnp.mean(jax.nn.softplus(-d_fake))

    def model_fn(features, labels, mode, params):
        critic = keras.Variable(d0, name="critic")
        generator = keras.Variable(g0, name="generator")
        d_loss, g_loss = losses(critic.value, generator.value, features)
        d_optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.5))
        g_optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.01))
        return spec_of(
            mode,
            d_loss + g_loss,
            [
                d_optimizer.minimize(d_loss, var_list=[critic]),
                g_optimizer.minimize(g_loss, var_list=[generator]),
            ],
        )

    values = train_once(model_fn, tmp_path, use_tpu=use_tpu)
    d_gradient, g_gradient = jax.jit(
        lambda d, g: (
            jax.grad(lambda d: losses(d, g, X)[0])(d),
            jax.grad(lambda g: losses(d, g, X)[1])(g),
        )
    )(d0, g0)
    np.testing.assert_allclose(values["critic"], d0 - 0.5 * d_gradient, rtol=1e-5)
    # Adam's first step has the size of the learning rate.
    np.testing.assert_allclose(
        values["generator"], g0 - 0.01 * np.sign(g_gradient), rtol=1e-4
    )


@pytest.fixture(scope="module")
def by_adafactor():
    """Returns Keras's weights before four steps, and after them by path."""
    layers = [keras.layers.Dense(4, name="a"), keras.layers.Dense(1, name="b")]
    model = keras.Sequential([keras.Input((X.shape[1],)), *layers])
    model.compile(keras.optimizers.Adafactor(RATE), "mse")
    initial = [np.array(v.value) for v in model.trainable_variables]
    model.fit(X, Y, batch_size=len(X), epochs=4, verbose=0)
    return initial, {
        variable.path.partition("/")[2]: np.array(variable.value)
        for variable in model.trainable_variables
    }


@pytest.mark.parametrize("use_tpu", [slow(False), True])
def test_adafactor_equals_keras(use_tpu, by_adafactor, tmp_path):
    initial, trained = by_adafactor

    def model_fn(features, labels, mode, params):
        made = iter(
            keras.initializers.get(lambda s, dtype, v=v: jnp.asarray(v))
            for v in initial
        )
        h = keras.layers.Dense(
            4,
            name="a",
            kernel_initializer=next(made),
            bias_initializer=next(made),
        )(features)
        y = keras.layers.Dense(
            1,
            name="b",
            kernel_initializer=next(made),
            bias_initializer=next(made),
        )(h)
        loss = ops.mean((y - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.Adafactor(RATE))
        return spec_of(mode, loss, optimizer.minimize(loss))

    for _ in range(2):  # Also from its own checkpoint.
        values = train_once(model_fn, tmp_path, steps=2, use_tpu=use_tpu)
    for path, value in trained.items():
        np.testing.assert_allclose(values[path], value, rtol=1e-4, atol=1e-6)


def test_one_wrapper_holds_several_optimizers(tmp_path):
    def optimizer():
        chosen = keras.optimizers.OptimizerMap(keras.optimizers.SGD(RATE), {})
        return keras.optimizers.MultiOptimizer(chosen)

    values = train_once(minimizing(optimizer), tmp_path)
    w = weights() - RATE * loss_gradient(weights())
    np.testing.assert_allclose(values["w"], w, rtol=1e-5)


def test_one_optimizer_minimizes_two_lists(tmp_path):
    def model_fn(features, labels, mode, params):
        first = keras.Variable(1.0, name="first")
        second = keras.Variable(1.0, name="second")
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(RATE, momentum=0.9))
        loss = 2 * first.value + 3 * second.value
        return spec_of(
            mode,
            loss,
            (
                optimizer.minimize(loss, var_list=[first]),
                optimizer.minimize(2 * loss, var_list=[second]),
            ),
        )

    values = train_once(model_fn, tmp_path)
    np.testing.assert_allclose(values["first"], 1 - RATE * 2, rtol=1e-6)
    np.testing.assert_allclose(values["second"], 1 - RATE * 6, rtol=1e-6)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_gradient_penalty_is_differentiated(use_tpu, tmp_path):
    def loss_of(w, x=X, y=Y):
        return jnp.mean((x @ w) ** 3 - y)

    def model_fn(features, labels, mode, params):
        weight = keras.Variable(weights(), name="w")
        loss = loss_of(weight.value, features, labels)
        (gradient,) = kte.gradients(loss, weight)
        loss = loss + 0.1 * ops.sum(kte.cross_replica_mean(gradient) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.01))
        return spec_of(mode, loss, optimizer.minimize(loss))

    def penalized(w):
        return loss_of(w) + 0.1 * jnp.sum(jax.grad(loss_of)(w) ** 2)

    values = train_once(model_fn, tmp_path, use_tpu=use_tpu)
    np.testing.assert_allclose(
        values["w"],
        weights() - 0.01 * jax.jit(jax.grad(penalized))(weights()),
        rtol=1e-5,
    )


def test_gradients_of_gradients(tmp_path):
    def model_fn(features, labels, mode, params):
        w = keras.Variable(2.0, name="w")
        (first,) = kte.gradients(w.value**4, w)  # 4 w^3
        (second,) = kte.gradients(first, [w])  # 12 w^2
        (third,) = kte.gradients(first * second, w)  # 240 w^4
        loss = third * 1e-4
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(1.0))
        return spec_of(mode, loss, optimizer.minimize(loss))

    values = train_once(model_fn, tmp_path)
    np.testing.assert_allclose(values["w"], 2 - 960e-4 * 8, rtol=1e-5)


@pytest.mark.parametrize(("reduction", "factor"), [("mean", 1), ("sum", 8), ("SUM", 8)])
def test_reduction_over_eight_cores(reduction, factor, tmp_path):
    model_fn = minimizing(lambda: keras.optimizers.SGD(0.01), reduction=reduction)
    values = train_once(model_fn, tmp_path, use_tpu=True)
    np.testing.assert_allclose(
        values["w"],
        weights() - 0.01 * factor * loss_gradient(weights()),
        rtol=1e-5,
    )


def test_computed_gradients_are_shares_of_the_mean(tmp_path):
    def model_fn(features, labels, mode, params):
        _, outputs = outputs_of(features)
        loss = ops.mean((outputs - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(RATE))
        pairs = optimizer.compute_gradients(loss)
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.apply_gradients(pairs),
            host_call=(seen.append, [pairs[0][0][None]]),
        )

    seen = []
    values = train_once(model_fn, tmp_path, use_tpu=True)
    expected = [
        loss_gradient(weights(), x, y) / 8
        for x, y in zip(np.split(X, 8), np.split(Y, 8), strict=True)
    ]
    np.testing.assert_allclose(seen[0], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(values["w"], weights() - RATE * sum(expected), rtol=1e-5)


def without_a_wrapper(features, labels, mode, params):
    weight, outputs = outputs_of(features)
    loss = ops.mean((outputs - labels) ** 2)
    optimizer = keras.optimizers.SGD(RATE)
    pairs = [(kte.gradients(loss, weight)[0], weight)]
    return spec_of(mode, loss, optimizer.apply_gradients(pairs))


def test_gradients_without_a_wrapper_on_one_core(tmp_path):
    values = train_once(without_a_wrapper, tmp_path)
    np.testing.assert_allclose(
        values["w"], weights() - RATE * loss_gradient(weights()), rtol=1e-5
    )


def test_missing_wrapper_on_eight_cores_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="wrap the optimizer"):
        train_once(without_a_wrapper, tmp_path, use_tpu=True)


def test_learning_rate_in_code_overrides_the_checkpoint(tmp_path):
    train_once(minimizing(lambda: keras.optimizers.SGD(RATE)), tmp_path)
    values = train_once(minimizing(lambda: keras.optimizers.SGD(RATE / 4)), tmp_path)
    w = weights() - RATE * loss_gradient(weights())
    w = w - RATE / 4 * loss_gradient(w)
    np.testing.assert_allclose(values["w"], w, rtol=1e-5)
    assert "sgd/learning_rate" not in values


def test_optimizer_made_outside_trains_two_batch_sizes(tmp_path):
    optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
    estimator = estimator_of(
        minimizing(lambda: optimizer), tmp_path, batch=48, iterations=1
    )

    def input_fn(params):
        yield X[:48], Y[:48]
        yield X[48:], Y[48:]

    estimator.train(input_fn)
    first = loss_gradient(weights(), X[:48], Y[:48])
    w = weights() - RATE * first
    w = w - RATE * (0.9 * first + loss_gradient(w, X[48:], Y[48:]))
    np.testing.assert_allclose(estimator.get_variable_value("w"), w, rtol=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda o, loss: o.minimize(ops.ones(3)), ValueError, "scalar"),
        (
            lambda o, loss: o.minimize(loss, var_list=[1]),
            TypeError,
            "keras.Variable",
        ),
        (
            lambda o, loss: o.minimize(loss, var_list=[]),
            ValueError,
            "no trainable variables",
        ),
        (lambda o, loss: o.apply_gradients([]), ValueError, "none"),
    ],
)
def test_invalid_calls_raise_errors_with_advice(call, error, message, tmp_path):
    def model_fn(features, labels, mode, params):
        _, outputs = outputs_of(features)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(RATE))
        loss = ops.mean(outputs)
        return spec_of(mode, loss, call(optimizer, loss))

    with pytest.raises(error, match=message):
        train_once(model_fn, tmp_path)


@pytest.mark.parametrize(
    "call",
    [
        kte.get_global_step,
        kte.trainable_variables,
        lambda: kte.gradients(1.0, []),
        lambda: kte.CrossShardOptimizer(keras.optimizers.SGD()).minimize(1.0),
    ],
)
def test_calls_outside_model_fn_are_errors(call):
    with pytest.raises(ValueError, match="outside a model_fn"):
        call()


def test_minimize_takes_a_name(tmp_path):
    def model_fn(features, labels, mode, params):
        weight, outputs = outputs_of(features)
        loss = ops.mean((outputs - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(RATE))
        step = kte.get_global_step()
        train_op = optimizer.minimize(loss, step, [weight], name="train")
        return spec_of(mode, loss, train_op)

    values = train_once(model_fn, tmp_path)
    expected = weights() - RATE * loss_gradient(weights())
    np.testing.assert_allclose(values["w"], expected, rtol=1e-4)


def test_gradients_outside_training_are_errors(tmp_path):
    def model_fn(features, labels, mode, params):
        weight, outputs = outputs_of(features)
        kte.gradients(ops.mean(outputs), weight)

    estimator = estimator_of(model_fn, tmp_path)
    with pytest.raises(ValueError, match="only in mode 'train'"):
        estimator.evaluate(repeated(X, Y), steps=1)


def test_invalid_wrappers_are_errors():
    with pytest.raises(TypeError, match=r"keras\.optimizers\.Optimizer"):
        kte.CrossShardOptimizer("sgd")
    with pytest.raises(ValueError, match="'mean' or 'sum'"):
        kte.CrossShardOptimizer(keras.optimizers.SGD(), reduction="max")


def test_invalid_reduce_dtype_is_refused():
    with pytest.raises(ValueError, match="'float32', or None"):
        kte.CrossShardOptimizer(keras.optimizers.SGD(), reduce_dtype="int8")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_cpus_reduce_in_at_least_float32(dtype, tmp_path):
    model_fn = minimizing(lambda: keras.optimizers.SGD(1.0), reduce_dtype=dtype)
    trained = train_once(model_fn, tmp_path, use_tpu=True)
    expected = weights() - loss_gradient(weights())
    np.testing.assert_allclose(trained["w"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "expected"), [(None, "bfloat16"), ("float32", "float32")]
)
def test_config_has_the_default_of_reduce_dtype(dtype, expected, tmp_path):
    dtypes = []

    def model_fn(features, labels, mode, params):
        loss = ops.mean((keras.layers.Dense(1)(features) - labels) ** 2)
        wrapped = kte.CrossShardOptimizer(keras.optimizers.SGD(), reduce_dtype=dtype)
        train_op = wrapped.minimize(loss)
        dtypes.append(train_op.reduce_dtype)
        return spec_of(mode, loss, train_op)

    config = {"reduce_dtype": "bfloat16"}
    estimator = estimator_of(model_fn, tmp_path, batch=64, config=config)
    estimator.train(repeated(X, Y), steps=1)
    assert set(dtypes) == {expected}
    with pytest.raises(ValueError, match="'float32' or 'bfloat16'"):
        kte.RunConfig(reduce_dtype="int8")


@pytest.mark.parametrize("make_cores", [lambda: ONE_CORE, all_cores])
def test_compiled_step_has_one_forward_and_backward_pass(make_cores):
    """A request for gradients does not add a second pass."""

    def model_fn(features, labels, mode, params):
        outputs = keras.layers.Dense(1)(keras.layers.Dense(32)(features))
        loss = ops.mean((outputs - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(RATE))
        if params["requests"]:
            pairs = optimizer.compute_gradients(loss)
            return spec_of(mode, loss, optimizer.apply_gradients(pairs))
        return spec_of(mode, loss, optimizer.minimize(loss))

    def dots(requests):
        model = EstimatorModel.from_model_fn(
            model_fn,
            {"requests": requests},
            cores=make_cores(),
        )
        model.prepare("train", X, Y)
        initial = model.program.store.initial_values()
        lists = (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
        )
        values = ([initial[v.path] for v in variables] for variables in lists)
        state = (*values, model.program.metrics_state())
        lowered = jax.jit(model.train_step).lower(state, (X, Y))
        return lowered.compile().as_text().count(" dot(")

    assert dots(requests=True) == dots(requests=False) > 0


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.SGD(0.1, loss_scale_factor=8.0),
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
    ],
)
def test_scaled_losses_are_refused(optimizer, tmp_path):
    def model_fn(features, labels, mode, params):
        loss = ops.mean(keras.layers.Dense(1)(features) ** 2)
        train_op = kte.CrossShardOptimizer(optimizer).minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = estimator_of(model_fn, tmp_path)
    with pytest.raises(ValueError, match="Loss scaling is not supported"):
        estimator.train(repeated(X, Y), steps=1)


def by_method(method):
    """The idiom of the official models, which wrap the optimizer only on TPU cores."""

    def model_fn(features, labels, mode, params):
        _, outputs = outputs_of(features)
        loss = ops.mean((outputs - labels) ** 2)
        optimizer = keras.optimizers.SGD(RATE)
        if params["use_tpu"]:
            optimizer = kte.CrossShardOptimizer(optimizer)
        train_op = method(optimizer, loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


@pytest.mark.parametrize("use_tpu", [False, True])
def test_minimize_with_a_bare_optimizer_and_a_wrapped_one(tmp_path, use_tpu):
    estimator = estimator_of(
        by_method(kte.minimize),
        tmp_path,
        use_tpu,
        batch=64,
        log_step_count_steps=1,
        save_summary_steps=1,
    )
    estimator.train(repeated(X, Y), steps=1)
    expected = weights() - RATE * loss_gradient(weights())
    np.testing.assert_allclose(estimator.get_variable_value("w"), expected, 1e-5)
    report = (tmp_path / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(report)["learning_rate"] == pytest.approx(RATE)


def test_minimize_with_a_bare_optimizer_on_cores():
    def model_fn(features, labels, mode, params):
        _, outputs = outputs_of(features)
        loss = ops.mean((outputs - labels) ** 2)
        train_op = kte.minimize(keras.optimizers.SGD(RATE), loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    model = EstimatorModel.from_model_fn(model_fn, cores=all_cores())
    model.fit(X, Y, batch_size=64, verbose=0)
    expected = weights() - RATE * loss_gradient(weights())
    (weight,) = model.trainable_variables
    np.testing.assert_allclose(weight.value, expected, 1e-5)


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        (
            lambda optimizer, loss: optimizer.minimize(loss),
            r"no method `minimize`.*on SGD.*`kte\.minimize\(optimizer, loss\)`",
        ),
        (
            lambda optimizer, loss: optimizer.compute_gradients(loss),
            r"`compute_gradients`.*kte\.CrossShardOptimizer\(optimizer\)",
        ),
    ],
)
def test_methods_that_keras_optimizers_lack_raise_errors_with_advice(
    tmp_path, method, advice
):
    with pytest.raises(AttributeError, match=advice):
        train_once(by_method(method), tmp_path)


def test_other_attributes_raise_the_usual_error(tmp_path):
    with pytest.raises(AttributeError, match="'SGD' object has no attribute"):
        train_once(by_method(lambda optimizer, _: optimizer.rate), tmp_path)


@pytest.mark.parametrize("unconnected", ["none", "zero"])
def test_gradient_by_a_variable_that_the_loss_does_not_use(tmp_path, unconnected):
    def model_fn(features, labels, mode, params):
        used = keras.Variable(np.float32(2.0), name="used")
        unused = keras.Variable(np.ones((1, 1), "float32"), name="unused")
        # TensorFlow returns `None` for all of these.
        in_loop = keras.ops.fori_loop(0, 2, lambda i, x: x @ unused, features)
        stopped = keras.ops.stop_gradient(in_loop)
        rounded = keras.ops.cast(keras.ops.cast(in_loop, "int32"), "float32")
        chosen = keras.ops.cond(in_loop[0, 0] > 0, lambda: features, lambda: stopped)
        loss = keras.ops.mean((stopped + rounded + chosen) * used)
        variables = [used, unused]
        gradients = kte.gradients(loss, variables, unconnected_gradients=unconnected)
        gradients, _ = kte.clip_by_global_norm(gradients, 0.5)
        pairs = zip(gradients, variables, strict=True)
        optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
        train_op = kte.apply_gradients(optimizer, pairs)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = kte.TPUEstimator(
        model_fn, str(tmp_path), kte.RunConfig(), train_batch_size=8, use_tpu=True
    )
    estimator.train(lambda params: np.ones((8, 1), "float32"), steps=1)
    assert estimator.get_variable_value("used") < 2.0
    # Weight decay multiplies by 1 - 0.1 * 0.5.
    expected = {"none": 1.0, "zero": 0.95}[unconnected]
    np.testing.assert_allclose(estimator.get_variable_value("unused"), [[expected]])
    slots = [name for name in estimator.get_variable_names() if "unused_" in name]
    assert bool(slots) == (unconnected == "zero")


def test_unconnected_gradients_are_validated(tmp_path):
    def model_fn(features, labels, mode, params):
        kte.gradients(1.0, [], unconnected_gradients="None")

    with pytest.raises(ValueError, match="must be 'none' or 'zero'. Received: 'None'"):
        kte.TPUEstimator(
            model_fn, str(tmp_path), kte.RunConfig(), train_batch_size=8
        ).train(lambda params: np.ones((8, 1), "float32"), steps=1)
