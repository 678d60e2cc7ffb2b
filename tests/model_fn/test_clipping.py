"""Clipping by global norm, against NumPy."""

import keras
import numpy as np
import pytest
from helpers import estimator_of, regression_data, repeated
from keras import ops

import keras_tpu_estimator as kte

X, Y = regression_data()
RATE = 0.1


@pytest.mark.parametrize("clip_norm", [0.5, 5.0, 20.0])
def test_tensors_are_scaled_together(clip_norm):
    tensors = [np.float32([3.0, 0.0]), None, np.float32([[0.0], [4.0]])]
    clipped, norm = kte.clip_by_global_norm(tensors, clip_norm)
    factor = min(1.0, clip_norm / 5.0)
    np.testing.assert_allclose(norm, 5.0, rtol=1e-6)
    np.testing.assert_allclose(clipped[0], tensors[0] * factor, rtol=1e-6)
    np.testing.assert_allclose(clipped[2], tensors[2] * factor, rtol=1e-6)
    assert clipped[1] is None


def test_given_norm_is_used():
    (clipped,), norm = kte.clip_by_global_norm([ops.ones(2)], 1.0, use_norm=4.0)
    np.testing.assert_allclose(clipped, [0.25, 0.25])
    assert norm == 4.0


def test_zeros_stay_zeros():
    (clipped,), norm = kte.clip_by_global_norm((ops.zeros(2),), 1.0)
    np.testing.assert_array_equal(clipped, [0.0, 0.0])
    assert norm == 0.0


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_nonfinite_gradient_makes_all_results_nan(bad):
    clipped, _ = kte.clip_by_global_norm([ops.ones(2), np.float32(bad)], 1.0)
    assert all(np.isnan(each).all() for each in clipped)


def test_small_dtypes_are_kept_and_norm_is_accurate():
    tensor = ops.full((300,), 10.0, dtype="bfloat16")
    (clipped,), norm = kte.clip_by_global_norm([tensor], 1.0)
    assert clipped.dtype == "bfloat16"
    np.testing.assert_allclose(norm, 10 * np.sqrt(300), rtol=1e-6)


def test_invalid_lists_raise_errors_with_advice():
    with pytest.raises(TypeError, match="into a list"):
        kte.clip_by_global_norm(ops.ones(2), 1.0)
    with pytest.raises(ValueError, match="the loss depends"):
        kte.clip_by_global_norm([None], 1.0)


def clipping_keras(loss):
    optimizer = keras.optimizers.SGD(RATE, global_clipnorm=0.5)
    return kte.CrossShardOptimizer(optimizer).minimize(loss)


def clipping_each_core(loss):
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(RATE))
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, _ = kte.clip_by_global_norm(gradients, 0.5)
    return optimizer.apply_gradients(zip(clipped, variables, strict=True))


def trained(train_op, model_dir, use_tpu, micro_batches):
    def model_fn(features, labels, mode, params):
        weight = keras.Variable("zeros", (3, 1), name="w")
        bias = keras.Variable("ones", (1,), name="b")
        outputs = features @ weight.value + bias.value
        loss = ops.mean((outputs - labels) ** 2)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op(loss))

    estimator = estimator_of(
        model_fn,
        model_dir,
        use_tpu,
        batch=64,
        config={"micro_batches": micro_batches},
    )
    estimator.train(repeated(X, Y), steps=1)
    return estimator.get_variable_value(["w", "b"])


def gradient(x, y):
    """The gradient with respect to the weights and the bias."""
    residual = 1.0 - y
    return np.append(2 * x.T @ residual / len(x), 2 * residual.mean(0))


def clipped(vector):
    return vector * min(1.0, 0.5 / np.linalg.norm(vector))


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("use_tpu", [False, True])
def test_keras_global_clipnorm_uses_the_global_batch(use_tpu, micro_batches, tmp_path):
    w, b = trained(clipping_keras, tmp_path, use_tpu, micro_batches)
    whole = gradient(X, Y)
    assert np.linalg.norm(whole) > 0.5
    expected = np.float32([0, 0, 0, 1]) - RATE * clipped(whole)
    np.testing.assert_allclose(np.append(w, b), expected, rtol=1e-5)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_manual_clipping_clips_on_each_core(micro_batches, tmp_path):
    w, b = trained(clipping_each_core, tmp_path, True, micro_batches)
    parts = zip(np.split(X, 8), np.split(Y, 8), strict=True)
    shares = [clipped(gradient(x, y) / 8) for x, y in parts]
    assert any(np.linalg.norm(gradient(*p) / 8) > 0.5 for p in [(X[:8], Y[:8])])
    expected = np.float32([0, 0, 0, 1]) - RATE * sum(shares)
    np.testing.assert_allclose(np.append(w, b), expected, rtol=1e-5)
