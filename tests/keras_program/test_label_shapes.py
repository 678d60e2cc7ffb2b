"""Labels that broadcast against outputs get a warning."""

import warnings

import keras
import pytest
from helpers import batches_of
from helpers import estimator_of
from helpers import linear
from helpers import model_fn_of
from helpers import regression_data
from keras import ops

X, Y = regression_data(32)
MESSAGE = (
    r"Labels of shape \(16,\) and outputs of shape \(16, 1\) give a tensor of "
    r"shape \(16, 16\)"
)


def run(tmp_path, loss_fn, labels, mode="evaluate", **kwargs):
    model_fn = model_fn_of(linear, loss_fn=loss_fn)
    estimator = estimator_of(model_fn, tmp_path)
    getattr(estimator, mode)(batches_of(X, labels), **kwargs)


@pytest.mark.parametrize("mode", ["train", "evaluate"])
def test_difference(tmp_path, mode):
    def loss(outputs, labels):
        return ops.mean((outputs - ops.cast(labels, "float32")) ** 2)

    with pytest.warns(UserWarning, match=MESSAGE) as caught:
        run(tmp_path, loss, Y[:, 0], mode, steps=1)
    assert {warning.filename for warning in caught} == {__file__}


def test_the_other_way_round(tmp_path):
    def loss(outputs, labels):
        return ops.mean(ops.abs(ops.subtract(outputs[:, 0], labels)))

    message = r"Labels of shape \(16, 1\) and outputs of shape \(16,\)"
    with pytest.warns(UserWarning, match=message):
        run(tmp_path, loss, Y)


def test_in_a_compiled_function(tmp_path):
    def loss(outputs, labels):
        return ops.mean(keras.ops.vectorized_map(ops.abs, outputs * labels))

    with pytest.warns(UserWarning, match=MESSAGE):
        run(tmp_path, loss, Y[:, 0])


@pytest.mark.parametrize(
    "loss",
    [
        keras.losses.MeanSquaredError(),
        lambda y, labels: ops.mean((y[:, 0] - labels) ** 2),
        lambda y, labels: ops.mean((y - labels[:, None]) ** 2),
        lambda y, labels: ops.mean((y - labels[None, :]) ** 2),
        lambda y, labels: ops.mean(ops.abs(labels[:, None] - labels)) * y[0, 0],
        lambda y, labels: ops.mean(y * 2.0 - ops.mean(labels)),
    ],
)
def test_what_is_meant(tmp_path, loss):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path, lambda y, labels: loss(y, labels), Y[:, 0])
