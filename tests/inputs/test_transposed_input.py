"""Tests images with the batch on the last axis, like ResNet's `transpose_input`."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_tpu_estimator as kte

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(64, 5, 6, 2)).astype("float32")
LABELS = np.arange(64, dtype="int32") % 2


def input_fn(params):
    size = params["batch_size"]
    for start in range(0, 64, size):
        images = IMAGES[start : start + size]
        if params["transpose_input"]:
            images = np.transpose(images, [1, 2, 3, 0])  # From NHWC to HWCN.
        yield images, LABELS[start : start + size]


def model_fn(features, labels, mode, params):
    if params["transpose_input"]:
        features = ops.transpose(features, [3, 0, 1, 2])
    assert features.shape == (params["batch_size"], 5, 6, 2)
    logits = keras.layers.Dense(2)(ops.mean(features, axis=(1, 2)))
    loss = ops.mean(
        keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    )
    if mode == kte.ModeKeys.EVAL:
        metrics = (_mean_label, [labels])
        return kte.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    train_op = optimizer.minimize(loss)
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def _mean_label(labels):
    return {"label": kte.metrics.mean(labels)}


def loss_of(tmp_path, transposed, use_tpu=True, **settings):
    """The loss after a step."""
    way = settings.pop("way", kte.InputPipelineConfig.PER_HOST_V1)
    config = kte.RunConfig(
        model_dir=str(tmp_path / f"{transposed}"),
        tf_random_seed=1,
        tpu_config=kte.TPUConfig(per_host_input_for_training=way),
    )
    estimator = kte.TPUEstimator(
        model_fn,
        config=config,
        params={"transpose_input": transposed},
        use_tpu=use_tpu,
        train_batch_size=32,
        eval_batch_size=32,
        **settings,
    )
    result = estimator.train(input_fn, steps=1).evaluate(input_fn)
    assert result["label"] == 0.5
    return result["loss"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The loss of the same images with the batch on the first axis, on one core."""
    return loss_of(tmp_path_factory.mktemp("first"), False, use_tpu=False)


@pytest.mark.parametrize(
    "settings",
    [
        {"way": kte.InputPipelineConfig.PER_HOST_V2},
        {"batch_axis": [3, 0]},
    ],
    ids=["a batch for each core", "batch_axis"],
)
def test_transposed_input_has_the_same_loss(tmp_path, expected, settings):
    loss = loss_of(tmp_path, True, **settings)
    assert loss == pytest.approx(expected, rel=1e-5)


def test_batch_on_the_last_axis_needs_batch_axis(tmp_path):
    with pytest.raises(
        ValueError, match="5 for features, but 32 for labels.*batch_axis"
    ):
        loss_of(tmp_path, True)
