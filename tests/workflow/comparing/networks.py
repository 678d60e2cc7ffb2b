"""A small network with options, each of which may be wrong in a port."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

import keras_tpu_estimator as kte

CLASSES = 4


@dataclasses.dataclass(frozen=True)
class Network:
    """The options of a network; the defaults are those of the old program."""

    activation: Any = "gelu"
    approximate: bool = True
    batch_axis: int = -1
    batch_epsilon: float = 1e-3
    batch_momentum: float = 0.99
    batch_training: bool = True
    beta_1: float = 0.9
    beta_2: float = 0.999
    bias_decay: bool = False
    clip: float | None = None
    decay: float = 0.01
    dropout: float = 0.2
    epsilon: float = 1e-6
    first_step: int = 0
    frozen: bool = False
    layer_epsilon: float = 1e-3
    loss_scale: float = 1.0
    mean_axis: tuple[int, ...] = (1, 2)
    optimizer: str = "adamw"
    padding: str = "same"
    rate: float = 1e-2
    reduction: str = "mean"
    residual: bool = True
    scale: float = 1.0
    smoothing: float = 0.1
    softmax_axis: int = -1
    stop_gradient: bool = False
    transposed: bool = False
    use_bias: bool = True
    weight_of_penalty: float = 1e-3
    names: tuple[str, str] = ("hidden", "logits")

    def model_fn(self) -> Callable[..., Any]:
        """Returns the `model_fn`."""

        def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
            del params
            logits, penalty = self._logits(features["image"], mode == "train")
            if mode == "infer":
                predictions = {"classes": ops.argmax(logits, -1), "logits": logits}
                return kte.TPUEstimatorSpec(mode, predictions=predictions)
            loss = self._loss(labels, logits) + self.weight_of_penalty * penalty
            train_op = kte.CrossShardOptimizer(self._optimizer()).minimize(loss)
            return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

        return model_fn

    def _logits(self, image: Any, training: bool) -> Any:
        image = image * self.scale
        convolution = keras.layers.Conv2D(
            6, 3, strides=2, padding="valid", use_bias=self.use_bias
        )
        if self.padding == "same":
            image = ops.pad(image, [(0, 0), (0, 1), (0, 1), (0, 0)])
        else:  # As in PyTorch.
            image = ops.pad(image, [(0, 0), (1, 0), (1, 0), (0, 0)])
        x = convolution(image)
        normalization = keras.layers.BatchNormalization(
            axis=self.batch_axis,
            epsilon=self.batch_epsilon,
            momentum=self.batch_momentum,
        )
        x = normalization(x, training=training and self.batch_training)
        x = ops.mean(ops.relu(x), axis=self.mean_axis)
        if self.stop_gradient:
            x = ops.stop_gradient(x)
        hidden = keras.layers.Dense(6, name=self.names[0], trainable=not self.frozen)
        y = hidden(x)
        if self.transposed:
            y = ops.matmul(x, ops.transpose(hidden.kernel)) + hidden.bias
        if self.activation == "gelu":
            y = keras.activations.gelu(y, approximate=self.approximate)
        else:
            y = keras.activations.get(self.activation)(y)
        x = x + y if self.residual else y
        x = keras.layers.LayerNormalization(epsilon=self.layer_epsilon)(x)
        x = keras.layers.Dropout(self.dropout)(x, training=training)
        logits = keras.layers.Dense(CLASSES, name=self.names[1])(x)
        return logits, ops.sum(ops.square(hidden.kernel))

    def _loss(self, labels: Any, logits: Any) -> Any:
        targets = ops.one_hot(labels, CLASSES)
        targets = targets * (1 - self.smoothing) + self.smoothing / CLASSES
        losses = -ops.sum(
            targets * ops.log_softmax(logits, axis=self.softmax_axis), axis=-1
        )
        if self.reduction == "sum":
            return self.loss_scale * ops.sum(losses)
        return self.loss_scale * ops.mean(losses)

    def _optimizer(self) -> Any:
        def schedule(step: Any) -> Any:
            step = ops.cast(step, "float32") + self.first_step
            return self.rate / (1 + 0.5 * step)

        options: dict[str, Any] = {
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "global_clipnorm": self.clip,
        }
        if self.optimizer == "adam":
            return keras.optimizers.Adam(_Schedule(schedule), **options)
        optimizer = keras.optimizers.AdamW(
            _Schedule(schedule), weight_decay=self.decay, **options
        )
        if not self.bias_decay:
            optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        return optimizer


class _Schedule(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, function: Callable[[Any], Any]):
        self._function = function

    def __call__(self, step: Any) -> Any:
        return self._function(step)

    def get_config(self) -> dict[str, Any]:
        return {}


def input_fn(params: Any) -> Any:
    """Yields batches of random images, whose classes follow from them."""
    del params
    generator = np.random.default_rng(0)
    for _ in range(4):
        image = generator.normal(size=(8, 6, 6, 2)).astype("float32")
        yield {"image": image}, np.argsort(image[:, 0, 0, 0]) % CLASSES
