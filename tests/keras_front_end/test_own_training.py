"""Tests the warning about an ignored `train_step` of a Keras model."""

import keras
import pytest
from helpers import batches_of, estimator_of, model_fn_of, regression_data

X, Y = regression_data(32)


class Own(keras.Model):
    """A model with its own `train_step`."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, *args):
        return super().train_step(*args)


class Plain(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


def inside(cls):
    return lambda features, is_training: cls()(features)


def outside(cls):
    model = cls()
    return lambda features, is_training: model(features)


@pytest.mark.parametrize("where", [inside, outside])
def test_training_warns(tmp_path, where):
    cls = type("Mine", (Own,), {"train_step": lambda self, *args: None})
    estimator = estimator_of(model_fn_of(where(cls)), tmp_path)
    with pytest.warns(
        UserWarning,
        match="The class Mine has a custom `train_step`.*Compute the loss",
    ) as caught:
        estimator.train(batches_of(X, Y), steps=1)
        estimator.train(batches_of(X[:8], Y[:8]), steps=1)
    # Python shows only one warning, unlike this block.
    assert {each.filename for each in caught} == {__file__}


def test_other_modes_do_not_warn(tmp_path, recwarn):
    estimator = estimator_of(model_fn_of(inside(Own)), tmp_path)
    estimator.evaluate(batches_of(X, Y))
    next(estimator.predict(batches_of(X)))
    estimator_of(model_fn_of(inside(Plain)), tmp_path / "plain").train(
        batches_of(X, Y), steps=1
    )
    assert not [each for each in recwarn if "train_step" in str(each.message)]
