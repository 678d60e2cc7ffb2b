"""The classifiers that all contestants train, and their data."""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

import keras_tpu_estimator as kte

LEARNING_RATE = 1e-3


class Classifier(abc.ABC):
    """A network for classification, with a version for each contestant.

    Attributes:
        shape: The shape of an example.
        classes: The number of classes.
        batch: Examples in a step.
    """

    shape: tuple[int, ...]
    classes: int
    batch: int

    @abc.abstractmethod
    def logits(self, x: Any, training: bool | None = None) -> Any:
        """Returns the logits; all contestants start with the same weights."""

    def data(self, examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns features and labels that can be learned, but not perfectly."""
        rng = np.random.default_rng(0)
        x = rng.normal(size=(examples, *self.shape)).astype("float32")
        features = math.prod(self.shape)
        flat = x.reshape(examples, features)
        scores = flat @ rng.normal(size=(features, self.classes))
        noise = rng.gumbel(size=scores.shape) * np.sqrt(features) / 2
        return x, np.argmax(scores + noise, axis=1).astype("int32")

    def model_fn(self) -> Callable[..., kte.TPUEstimatorSpec]:
        """Returns the `model_fn` of the network."""

        def model_fn(
            features: Any, labels: Any, mode: str, params: Any
        ) -> kte.TPUEstimatorSpec:
            del params
            logits = self.logits(features, mode == kte.ModeKeys.TRAIN)
            if mode == kte.ModeKeys.PREDICT:
                return kte.TPUEstimatorSpec(mode, predictions={"logits": logits})
            loss = mean_loss(labels, logits)
            if mode == kte.ModeKeys.EVAL:
                return kte.TPUEstimatorSpec(
                    mode, loss=loss, eval_metrics=(_metric_fn, [labels, logits])
                )
            optimizer = kte.CrossShardOptimizer(adam())
            return kte.TPUEstimatorSpec(
                mode, loss=loss, train_op=optimizer.minimize(loss)
            )

        return model_fn

    def keras_model(
        self, steps_per_execution: int = 1, metrics: Sequence[str] = ()
    ) -> keras.Model:
        """Returns a compiled Keras model of the network."""
        inputs = keras.Input(self.shape)
        model = keras.Model(inputs, self.logits(inputs))
        model.compile(
            optimizer=adam(),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=steps_per_execution,
            metrics=list(metrics),
        )
        return model


@dataclasses.dataclass(frozen=True)
class Mlp(Classifier):
    """A multilayer perceptron that classifies.

    Attributes:
        sizes: Features, hidden units of each layer, classes.
        batch: Examples in a step.
    """

    sizes: tuple[int, ...]
    batch: int

    def __str__(self) -> str:
        sizes = "-".join(map(str, self.sizes))
        return f"MLP {sizes}, batch {self.batch}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an example."""
        return self.sizes[:1]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.sizes[-1]

    def logits(self, x: Any, training: bool | None = None) -> Any:
        """Returns the logits; all contestants start with the same weights."""
        del training
        *hidden, classes = self.sizes[1:]
        for index, units in enumerate([*hidden, classes]):
            x = keras.layers.Dense(
                units,
                activation="relu" if index < len(hidden) else None,
                kernel_initializer=keras.initializers.GlorotUniform(seed=index),
            )(x)
        return x


def adam() -> keras.optimizers.Optimizer:
    """Returns the optimizer of all contestants."""
    return keras.optimizers.Adam(LEARNING_RATE)


def mean_loss(labels: Any, logits: Any) -> Any:
    """Returns the loss of all contestants."""
    return ops.mean(
        keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    )


def _metric_fn(labels: Any, logits: Any) -> dict[str, Any]:
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    accuracy.update_state(labels, logits)
    return {"accuracy": accuracy}
