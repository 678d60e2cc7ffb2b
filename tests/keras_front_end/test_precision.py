"""Tests Keras's dtype policy for the layers of a model_fn."""

import warnings

import jax
import keras
import numpy as np
import pytest
from helpers import estimator_of, regression_data, repeated, slow, squared_error
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator import EstimatorModel

X, Y = regression_data()
MIXED = kte.RunConfig(dtype_policy="mixed_bfloat16")


def model_of(seen):
    """A model_fn that records the dtypes of its activations and its loss."""

    def model_fn(features, labels, mode, params):
        x = keras.layers.Dense(8, activation="tanh")(features)
        outputs = keras.layers.Dense(1)(x)
        seen[mode] = [str(x.dtype), str(outputs.dtype)]
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, predictions={"y": outputs})
        # The loss has the dtype of the layers, which is a common mistake.
        loss = ops.mean((outputs - ops.cast(labels, outputs.dtype)) ** 2)
        seen[mode].append(str(loss.dtype))
        if mode == kte.ModeKeys.EVAL:
            metrics = (
                lambda labels, outputs: {
                    "mae": kte.metrics.mean_absolute_error(labels, outputs)
                },
                [labels, outputs],
            )
            return kte.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.02))
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss),
            host_call=(
                lambda outputs: seen.update(host=str(outputs.dtype)),
                [outputs],
            ),
        )

    return model_fn


def trained(policy, model_dir, use_tpu, seen):
    """A trained estimator and its evaluation."""
    estimator = estimator_of(
        model_of(seen),
        model_dir,
        use_tpu,
        batch=64,
        iterations=40,
        config={"dtype_policy": policy},
    )
    estimator.train(repeated(X, Y), steps=40)
    return estimator, estimator.evaluate(repeated(X, Y), steps=1)


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """The evaluation in float32, which is nearly the same on all cores."""
    return trained(None, tmp_path_factory.mktemp("exact"), False, {})[1]


@pytest.mark.parametrize("use_tpu", [slow(False), True])
def test_mixed_precision_trains_like_float32(use_tpu, exact, tmp_path):
    seen = {}
    estimator, mixed = trained("mixed_bfloat16", tmp_path, use_tpu, seen)
    prediction = next(estimator.predict(repeated(X, Y)))["y"]
    values = kte.checkpoints.read(estimator.latest_checkpoint())
    assert seen == {
        "train": ["bfloat16"] * 3,
        "eval": ["bfloat16"] * 3,
        "infer": ["bfloat16"] * 2,
        "host": "float32",
    }
    for name in ("loss", "mae"):
        assert mixed[name].dtype == "float32"
        np.testing.assert_allclose(mixed[name], exact[name], rtol=0.05)
        assert mixed[name] != exact[name]
    assert prediction.dtype == "float32"
    for path, value in values.items():
        assert value.dtype in ("float32", "int32", "int64", "uint32"), path


def test_gradients_and_the_training_loss_are_float32():
    def model_fn(features, labels, mode, params):
        outputs = keras.layers.Dense(1)(features)
        loss = ops.mean(ops.square(outputs))
        (gradient,) = kte.gradients(loss, kte.trainable_variables()[:1])
        dtypes.append((str(loss.dtype), str(gradient.dtype)))
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    dtypes = []
    model = EstimatorModel.from_model_fn(model_fn, config=MIXED)
    step = model.prepare("train", X, Y)
    values = model.program.store.initial_values()
    _, outputs = jax.eval_shape(step.function, values, X, Y)
    assert dtypes[-1] == ("bfloat16", "float32")
    assert outputs["loss"].dtype == "float32"


def test_policy_applies_only_while_model_fn_is_traced():
    def model_fn(features, labels, mode, params):
        inside.append(keras.config.dtype_policy().name)
        raise ZeroDivisionError

    inside, before = [], keras.config.dtype_policy()
    model = EstimatorModel.from_model_fn(model_fn, config=MIXED)
    for mode in ("train", "eval", "infer"):
        with pytest.raises(ZeroDivisionError):
            model.prepare(mode, X, Y)
        assert keras.config.dtype_policy() is before
    assert inside == ["mixed_bfloat16"] * 3


def test_keras_decides_without_a_policy():
    def model_fn(features, labels, mode, params):
        outputs = keras.layers.Dense(1)(features)
        return kte.TPUEstimatorSpec(mode, predictions={"y": outputs})

    model = EstimatorModel.from_model_fn(model_fn, config=kte.RunConfig())
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        predictions = model.predict(X, verbose=0)
    finally:
        keras.config.set_dtype_policy(before)
    assert predictions["y"].dtype == "bfloat16"


def test_float32_overrides_the_policy_of_keras():
    def model_fn(features, labels, mode, params):
        outputs = keras.layers.Dense(1)(features)
        return kte.TPUEstimatorSpec(mode, predictions={"y": outputs})

    config = kte.RunConfig(dtype_policy="float32")
    model = EstimatorModel.from_model_fn(model_fn, config=config)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        predictions = model.predict(X, verbose=0)
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    finally:
        keras.config.set_dtype_policy(before)
    assert predictions["y"].dtype == "float32"


def only_arrays(features):
    """A model of JAX arrays, without layers."""
    return features @ kte.jax_params("w", lambda: np.zeros([3, 1], "float32"))


def layers_made_outside(policy):
    """A model with one layer, made with a policy."""
    layer = keras.layers.Dense(1, dtype=policy)
    return lambda features: layer(features)


def layers_inside(features):
    """A model with one layer that has a policy, and one without."""
    hidden = keras.layers.Dense(1, dtype="float32")(features)
    return keras.layers.Activation("tanh")(hidden)


POLICIES = [
    (only_arrays, "`model_fn` calls no layers"),
    (layers_made_outside("float32"), "the layers have 'float32'"),
    (layers_made_outside("mixed_bfloat16"), None),
    (layers_inside, None),
]


@pytest.mark.parametrize(("model", "expected"), POLICIES)
def test_unused_policy_warns_once(model, expected, tmp_path):
    def model_fn(features, labels, mode, params):
        outputs = ops.cast(model(features), "float32")
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, predictions={"y": outputs})
        loss = squared_error(outputs, labels)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        train_op = mode == kte.ModeKeys.TRAIN and optimizer.minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op or None)

    estimator = estimator_of(
        model_fn, tmp_path, True, config={"dtype_policy": "mixed_bfloat16"}
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.train(repeated(X, Y), steps=1)
        estimator.evaluate(repeated(X, Y), steps=1)
        next(estimator.predict(repeated(X, Y)))
    found = [str(e.message) for e in caught if "dtype_policy" in str(e.message)]
    assert len(found) == (1 if expected else 0)
    assert all(expected in message for message in found)
