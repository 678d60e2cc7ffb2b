"""The spec of a regression, which examples on several pages share."""

import keras_tpu_estimator as kte  # isort: split

import keras
from keras import ops


def sgd(loss):
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.01))
    return optimizer.minimize(loss)


def regression(mode, labels, y, train=sgd):
    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(mode, predictions={"y": y})
    loss = ops.mean((y - labels) ** 2)
    train_op = train(loss) if mode == kte.ModeKeys.TRAIN else None
    return kte.TPUEstimatorSpec(
        mode, predictions={"y": y}, loss=loss, train_op=train_op
    )
