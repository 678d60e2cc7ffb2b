"""Convolutional networks that all contestants train."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from benchmarks.models import Classifier

_Network = Callable[[Any, bool | None, "_Seeds"], Any]


@dataclasses.dataclass(frozen=True)
class ConvolutionalNetwork(Classifier):
    """A convolutional network.

    Attributes:
        name: What it is, for the table.
        features: The layers between images and classes.
        shape: That of an image.
        batch: Examples in a step.
        classes: How many there are. Defaults to 10.
    """

    name: str
    features: _Network
    shape: tuple[int, ...]
    batch: int
    classes: int = 10

    def __str__(self) -> str:
        sizes = " x ".join(map(str, self.shape))
        return f"{self.name}, {sizes}, batch {self.batch}"

    def logits(self, x: Any, training: bool | None = None) -> Any:
        """The network, the same from the first weights on for everybody."""
        seeds = _Seeds()
        x = self.features(x, training, seeds)
        return layers.Dense(self.classes, kernel_initializer=seeds.next())(x)


class _Seeds:
    """Initializers of successive layers."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> keras.initializers.Initializer:
        self._count += 1
        return keras.initializers.HeNormal(seed=self._count)


def _two_convolutions(x: Any, training: bool | None, seeds: _Seeds) -> Any:
    del training
    for filters in (32, 64):
        x = _convolution(x, filters, seeds, activation="relu", use_bias=True)
        x = layers.MaxPooling2D(2)(x)
    return layers.Flatten()(x)


def _separable(x: Any, training: bool | None, seeds: _Seeds) -> Any:
    for filters, strides in ((32, 1), (64, 2)):
        x = layers.DepthwiseConv2D(
            3,
            strides,
            padding="same",
            use_bias=False,
            depthwise_initializer=seeds.next(),
        )(x)
        x = layers.ReLU()(_norm(x, training))
        x = _convolution(x, filters, seeds, size=1)
        x = layers.ReLU()(_norm(x, training))
    return layers.GlobalAveragePooling2D()(x)


def _residual(x: Any, training: bool | None, seeds: _Seeds) -> Any:
    x = layers.ReLU()(_norm(_convolution(x, 32, seeds), training))
    for filters, strides in ((32, 1), (64, 2)):
        y = _convolution(x, filters, seeds, strides)
        y = layers.ReLU()(_norm(y, training))
        y = _norm(_convolution(y, filters, seeds), training)
        if strides > 1:
            x = _convolution(x, filters, seeds, strides, size=1)
        x = layers.ReLU()(x + y)
    return layers.GlobalAveragePooling2D()(x)


def _convolution(
    x: Any,
    filters: int,
    seeds: _Seeds,
    strides: int = 1,
    size: int = 3,
    activation: str | None = None,
    use_bias: bool = False,
) -> Any:
    return layers.Conv2D(
        filters,
        size,
        strides,
        padding="same",
        activation=activation,
        use_bias=use_bias,
        kernel_initializer=seeds.next(),
    )(x)


def _norm(x: Any, training: bool | None) -> Any:
    return layers.BatchNormalization()(x, training=training)


NETWORKS = (
    ConvolutionalNetwork(
        "two 3 x 3 convolutions", _two_convolutions, (28, 28, 1), 64
    ),
    ConvolutionalNetwork(
        "depthwise-separable blocks", _separable, (32, 32, 16), 32
    ),
    ConvolutionalNetwork("residual blocks", _residual, (32, 32, 3), 32),
)
