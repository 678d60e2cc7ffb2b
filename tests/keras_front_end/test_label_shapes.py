"""Tests the warning about labels that broadcast against outputs."""

import jax
import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of, linear, model_fn_of, regression_data
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.tracing.analyses import crossings

X, Y = regression_data(32)
OUTPUTS, LABELS = np.ones((4, 1), "float32"), np.ones(4, "float32")
HEADS = np.arange(3, dtype="float32")


def squared(outputs, labels):
    return ops.mean((outputs - ops.cast(labels, "float32")) ** 2)


@pytest.mark.parametrize("mode", ["train", "evaluate"])
def test_an_estimator_warns(tmp_path, mode):
    estimator = estimator_of(model_fn_of(linear, loss_fn=squared), tmp_path)
    with pytest.warns(
        UserWarning,
        match=r"Labels of shape \(16,\) and outputs of shape \(16, 1\) give a "
        r"tensor of shape \(16, 16\)",
    ) as caught:
        getattr(estimator, mode)(batches_of(X, Y[:, 0]), steps=1)
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.filterwarnings("default:Labels of shape:UserWarning")
def test_each_estimator_of_a_keras_model_warns_once(tmp_path):
    """The metric has the same line in all of them. Keras reshapes for its own."""

    class Distance(keras.metrics.Mean):
        def update_state(self, y_true, y_pred, sample_weight=None):
            super().update_state(ops.abs(y_true - y_pred))

    for number in range(2):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="y")])
        model.compile("sgd", "mse", metrics=[Distance(name="distance")])
        estimator = kte.from_keras(
            model, str(tmp_path / str(number)), use_tpu=False, train_batch_size=16
        )
        with pytest.warns(UserWarning, match="Labels of shape") as caught:
            estimator.train(batches_of(X, Y[:, 0]), steps=1)
            estimator.train(batches_of(X, Y[:, 0]), steps=1)
        assert len(caught) == 1


def found(loss, outputs, labels):
    """The shapes that a loss combines."""
    traced = jax.make_jaxpr(loss)(outputs, labels)
    return [
        (each.labels, each.outputs)
        for each in crossings(traced, [False, True])
        if (each.file, bool(each.line)) == (__file__, True)
    ]


@pytest.mark.parametrize(
    "loss",
    [
        squared,
        lambda y, labels: ops.mean(ops.abs(ops.subtract(y, labels))),
        lambda y, labels: ops.sum(jax.jit(lambda a, b: a * b)(y, labels)),
        lambda y, labels: ops.mean(ops.equal(ops.round(y), labels)),
        lambda y, labels: jax.lax.cond(
            ops.sum(y) > 0, squared, lambda *_: 0.0, y, labels
        ),
        lambda y, labels: jax.lax.fori_loop(
            0, 3, lambda _, loss: loss + squared(y, labels), 0.0
        ),
        lambda y, labels: jax.lax.while_loop(
            lambda loss: squared(y, labels) + loss < 0, lambda x: x, 0.0
        ),
        lambda y, labels: squared(
            y, jax.lax.cond(ops.sum(y) > 0, lambda x: 2 * x, abs, labels)
        ),
        jax.checkpoint(squared),
        # A new leading axis, of outputs, of labels, or of both.
        lambda y, labels: ops.sum(jax.vmap(lambda h: squared(h * y, labels))(HEADS)),
        lambda y, labels: ops.sum(jax.vmap(lambda h: squared(y, h * labels))(HEADS)),
        lambda y, labels: ops.sum(
            ops.vectorized_map(lambda h: squared(h * y, h * labels), HEADS)
        ),
        lambda y, labels: ops.sum(
            jax.vmap(jax.vmap(lambda h: squared(h * y, labels)))(HEADS[:, None])
        ),
    ],
)
def test_broadcast_labels_are_found(loss):
    assert found(loss, OUTPUTS, LABELS) == [((4,), (4, 1))]
    # The other way round.
    assert found(loss, LABELS, OUTPUTS) == [((4, 1), (4,))]


@pytest.mark.parametrize(
    "loss",
    [
        keras.losses.MeanSquaredError(),
        lambda y, labels: ops.mean((y[:, 0] - labels) ** 2),
        lambda y, labels: ops.mean((y - labels[:, None]) ** 2),
        lambda y, labels: ops.mean((y - labels[None, :]) ** 2),
        lambda y, labels: ops.mean(ops.abs(labels[:, None] - labels)) * y[0, 0],
        lambda y, labels: ops.mean(y * 2.0 - ops.mean(labels)),
        lambda y, labels: ops.mean(y * ops.ones(4)) + ops.mean(labels),
        lambda y, labels: jax.vmap(lambda h: ops.mean(h * y - labels[None, :]))(HEADS),
        jax.vmap(squared),
        # All pairs, by a function of two scalars.
        lambda y, labels: jax.vmap(jax.vmap(squared, (None, 0)), (0, None))(
            y[:, 0], labels
        ),
    ],
)
def test_intended_shapes_are_accepted(loss):
    traced = jax.make_jaxpr(lambda y, labels: loss(y, labels))(OUTPUTS, LABELS)
    assert not crossings(traced, [False, True])
