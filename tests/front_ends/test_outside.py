"""Tests of a front end outside the package, which is the code of a page."""

import importlib.util
import pathlib

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import keras_tpu_estimator as kte

SNIPPET = pathlib.Path(__file__).parents[2] / "docs/snippets/numpy_front_end.py"


def _loaded():
    spec = importlib.util.spec_from_file_location("numpy_front_end", SNIPPET)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


outside = _loaded()
WEIGHTS = np.array([[1.0], [-2.0]], "float32")
BATCHES = [np.random.default_rng(n).normal(size=(16, 2)) for n in range(6)]


def model_fn(features, labels, mode, params):
    values = outside.parameters(
        {"kernel": np.zeros((2, 1), "float32"), "bias": np.zeros(1, "float32")}
    )
    y = features["x"] @ values["kernel"] + values["bias"]
    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(mode, {"y": y})
    loss = jnp.mean((y - labels) ** 2)
    if mode == kte.ModeKeys.EVAL:
        metrics = (metric_fn, [labels, y])
        return kte.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=loss)


model_fn.front_end = outside.NumpyFrontEnd(learning_rate=0.1)


def metric_fn(labels, predictions):
    return {"error": kte.metrics.mean_absolute_error(labels, predictions)}


def input_fn(params):
    for batch in BATCHES:
        x = batch.astype("float32")
        yield {"x": x}, x @ WEIGHTS + 0.5


def estimator_of(directory, cores=None, **config):
    tpu_config = kte.TPUConfig(iterations_per_loop=2, num_shards=cores)
    return kte.TPUEstimator(
        model_fn,
        config=kte.RunConfig(model_dir=str(directory), tpu_config=tpu_config, **config),
        train_batch_size=16,
        eval_batch_size=16,
        predict_batch_size=16,
    )


def expected(steps):
    """The parameters after steps of gradient descent, by NumPy."""
    kernel, bias = np.zeros((2, 1)), np.zeros(1)
    for x in BATCHES[:steps]:
        x = x.astype("float32")
        error = x @ kernel + bias - (x @ WEIGHTS + 0.5)
        kernel = kernel - 0.1 * 2 * x.T @ error / len(x)
        bias = bias - 0.1 * 2 * error.mean(0)
    return {"kernel": kernel, "bias": bias}


def assert_trained(estimator, steps):
    for path, value in expected(steps).items():
        found = estimator.get_variable_value(path)
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cores", [None, 1])
def test_training_is_gradient_descent(cores, tmp_path):
    estimator = estimator_of(tmp_path, cores).train(input_fn, steps=6)
    assert estimator.get_variable_value("global_step") == 6
    assert_trained(estimator, 6)


def test_training_resumes_on_another_number_of_devices(tmp_path):
    estimator_of(tmp_path).train(input_fn, steps=2)

    def rest(params):
        return iter([*input_fn(params)][2:])

    assert_trained(estimator_of(tmp_path, cores=1).train(rest, max_steps=6), 6)


def test_evaluation_and_prediction_use_the_checkpoint(tmp_path):
    estimator = estimator_of(tmp_path).train(input_fn, steps=6)
    values = expected(6)
    errors = []
    for batch in BATCHES:
        outputs = batch @ values["kernel"] + values["bias"]
        errors.append(outputs - (batch @ WEIGHTS + 0.5))
    result = estimator.evaluate(input_fn)
    assert result["global_step"] == 6
    np.testing.assert_allclose(result["loss"], np.mean(np.square(errors)), rtol=1e-3)
    np.testing.assert_allclose(result["error"], np.mean(np.abs(errors)), rtol=1e-3)

    def seven_rows(params):
        yield {"x": BATCHES[0][:7].astype("float32")}

    rows = [each["y"] for each in estimator.predict(seven_rows)]
    assert len(rows) == 7
    outputs = BATCHES[0][:7] @ values["kernel"] + values["bias"]
    np.testing.assert_allclose(rows, outputs, rtol=1e-3, atol=1e-4)


def test_export_computes_the_predictions(tmp_path):
    import tensorflow as tf

    estimator = estimator_of(tmp_path / "model").train(input_fn, steps=2)

    def receiver_fn():
        x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
        return kte.export.ServingInputReceiver({"x": x}, {"x": x})

    path = estimator.export_saved_model(str(tmp_path / "export"), receiver_fn)
    loaded = tf.saved_model.load(path, tags=["serve"])
    served = loaded.signatures["serving_default"]
    x = np.ones((3, 2), "float32")
    values = expected(2)
    outputs = served(x=tf.constant(x))["y"].numpy()
    np.testing.assert_allclose(
        outputs, x @ values["kernel"] + values["bias"], rtol=1e-4, atol=1e-5
    )


def test_callbacks_see_the_parameters(tmp_path):
    seen = {}

    class Seen(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            seen.update({v.path: v.numpy() for v in self.model.trainable_variables})

    estimator_of(tmp_path).train(input_fn, [Seen()], steps=6)
    np.testing.assert_allclose(seen["kernel"], expected(6)["kernel"], rtol=1e-4)


def test_options_without_effect_are_refused(tmp_path):
    estimator = estimator_of(tmp_path, remat="full")
    with pytest.raises(NotImplementedError, match=r"RunConfig\.remat must not be set"):
        estimator.train(input_fn, steps=6)


def test_parameters_have_one_shape_in_all_modes():
    store = kte.front_ends.VariableStore()
    store.add_arrays({"kernel": np.zeros(2)})
    store.add_arrays({"kernel": np.ones(2)})
    assert store.initial_values()["kernel"].tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"must have the shape \(2,\) in all modes"):
        store.add_arrays({"kernel": np.zeros(3)})
