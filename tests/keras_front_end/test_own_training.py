"""A `train_step` of a Keras model in a `model_fn` is reported as ignored."""

import keras
import pytest
from helpers import batches_of, estimator_of, model_fn_of, regression_data

X, Y = regression_data(32)


class Own(keras.Model):
    """Says itself how it is trained."""

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
    # Python shows one of them, unlike this block.
    assert {each.filename for each in caught} == {__file__}


def test_what_is_no_training_does_not(tmp_path, recwarn):
    estimator = estimator_of(model_fn_of(inside(Own)), tmp_path)
    estimator.evaluate(batches_of(X, Y))
    next(estimator.predict(batches_of(X)))
    estimator_of(model_fn_of(inside(Plain)), tmp_path / "plain").train(
        batches_of(X, Y), steps=1
    )
    assert not [each for each in recwarn if "train_step" in str(each.message)]
