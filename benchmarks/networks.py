"""Networks with convolutions or attention, which all contestants train."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from benchmarks.models import Classifier

_Features = Callable[[Any, bool | None, "_Seeds"], Any]


@dataclasses.dataclass(frozen=True)
class Network(Classifier):
    """A network with convolutions or attention.

    Attributes:
        name: Its name in the table.
        features: The layers before the last dense layer.
        shape: The shape of an example.
        batch: Examples in a step.
        than_scan: The required speed relative to a plain scan. Defaults to `None`,
            for networks that are not rewritten.
        classes: The number of classes. Defaults to 10.
    """

    name: str
    features: _Features
    shape: tuple[int, ...]
    batch: int
    than_scan: float | None = None
    classes: int = 10

    def __str__(self) -> str:
        sizes = " x ".join(map(str, self.shape))
        return f"{self.name}, {sizes}, batch {self.batch}"

    def logits(self, x: Any, training: bool | None = None) -> Any:
        """Returns the logits; all contestants start with the same weights."""
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


def _two_convolutions(pool: int, strides: int) -> _Features:
    def features(x: Any, training: bool | None, seeds: _Seeds) -> Any:
        del training
        for filters in (32, 64):
            x = _convolution(x, filters, seeds, activation="relu", use_bias=True)
            x = layers.MaxPooling2D(pool, strides, padding="same")(x)
        return layers.Flatten()(x)

    return features


def _one_convolution(x: Any, training: bool | None, seeds: _Seeds) -> Any:
    x = layers.ReLU()(_norm(_convolution(x, 16, seeds), training))
    return layers.Flatten()(layers.MaxPooling2D(2)(x))


def _on_one_axis(x: Any, training: bool | None, seeds: _Seeds) -> Any:
    for filters in (32, 64):
        x = layers.Conv1D(
            filters,
            5,
            padding="same",
            use_bias=False,
            kernel_initializer=seeds.next(),
        )(x)
        x = layers.MaxPooling1D(2)(layers.ReLU()(_norm(x, training)))
    return layers.GlobalAveragePooling1D()(x)


def _separable(x: Any, training: bool | None, seeds: _Seeds) -> Any:
    for filters, strides in ((32, 1), (64, 2)):
        x = layers.ReLU()(_norm(_depthwise(x, seeds, strides), training))
        x = _convolution(x, filters, seeds, size=1)
        x = layers.ReLU()(_norm(x, training))
    return layers.GlobalAveragePooling2D()(x)


def _mobile(x: Any, training: bool | None, seeds: _Seeds) -> Any:
    """Returns the features of inverted residual blocks, as in MobileNetV2."""
    for strides in (1, 2, 1):
        filters = x.shape[-1]
        y = _convolution(x, 4 * filters, seeds, size=1)
        y = layers.ReLU(6)(_norm(y, training))
        y = layers.ReLU(6)(_norm(_depthwise(y, seeds, strides), training))
        y = _norm(_convolution(y, filters, seeds, size=1), training)
        x = x + y if strides == 1 else y
    return layers.GlobalAveragePooling2D()(x)


def _residual(first: int, *blocks: tuple[int, int]) -> _Features:
    """Returns a function of residual blocks with these filters and strides."""

    def features(x: Any, training: bool | None, seeds: _Seeds) -> Any:
        x = layers.ReLU()(_norm(_convolution(x, first, seeds), training))
        for filters, strides in blocks:
            y = _convolution(x, filters, seeds, strides)
            y = layers.ReLU()(_norm(y, training))
            y = _norm(_convolution(y, filters, seeds), training)
            if strides > 1:
                x = _convolution(x, filters, seeds, strides, size=1)
            x = layers.ReLU()(x + y)
        return layers.GlobalAveragePooling2D()(x)

    return features


def _u_net(x: Any, training: bool | None, seeds: _Seeds) -> Any:
    kept = []
    for filters in (16, 32):
        kept.append(_twice(x, filters, seeds))
        x = layers.MaxPooling2D(2)(kept[-1])
    x = _twice(x, 64, seeds)
    for same in reversed(kept):
        x = layers.Conv2DTranspose(
            same.shape[-1],
            2,
            2,
            padding="same",
            kernel_initializer=seeds.next(),
        )(x)
        x = _twice(layers.Concatenate()([same, x]), same.shape[-1], seeds)
    return layers.GlobalAveragePooling2D()(x)


def _recurrent(x: Any, training: bool | None, seeds: _Seeds) -> Any:
    del training
    return layers.LSTM(
        64,
        kernel_initializer=seeds.next(),
        recurrent_initializer=seeds.next(),
    )(x)


def _attention(x: Any, training: bool | None, seeds: _Seeds) -> Any:
    """Returns the features of a transformer block."""
    width = x.shape[-1]
    y = layers.LayerNormalization()(x)
    y = layers.MultiHeadAttention(4, width // 4, kernel_initializer=seeds.next())(
        y, y, training=training
    )
    x = x + y
    y = layers.LayerNormalization()(x)
    y = layers.Dense(4 * width, activation="relu", kernel_initializer=seeds.next())(y)
    x = x + layers.Dense(width, kernel_initializer=seeds.next())(y)
    return layers.GlobalAveragePooling1D()(x)


def _twice(x: Any, filters: int, seeds: _Seeds) -> Any:
    for _ in range(2):
        x = _convolution(x, filters, seeds, activation="relu", use_bias=True)
    return x


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


def _depthwise(x: Any, seeds: _Seeds, strides: int) -> Any:
    return layers.DepthwiseConv2D(
        3,
        strides,
        padding="same",
        use_bias=False,
        depthwise_initializer=seeds.next(),
    )(x)


def _norm(x: Any, training: bool | None) -> Any:
    # Keras 3.16 treats an explicit None as inference.
    mode = {} if training is None else {"training": training}
    return layers.BatchNormalization()(x, **mode)


_EIGHTEEN = tuple(
    (filters, strides)
    for filters in (16, 32, 64, 128)
    for strides in (2 if filters > 16 else 1, 1)
)

CONVOLUTIONS = (
    Network("two 3 x 3 convolutions", _two_convolutions(2, 2), (28, 28, 1), 64, 12),
    Network("two, pools that overlap", _two_convolutions(3, 2), (28, 28, 1), 64, 10),
    Network("one convolution", _one_convolution, (28, 28, 1), 128, 2.5),
    Network("depthwise-separable blocks", _separable, (32, 32, 16), 32, 15),
    Network("residual blocks", _residual(32, (32, 1), (64, 2)), (32, 32, 3), 32, 20),
    Network("ResNet-18, narrow", _residual(16, *_EIGHTEEN), (32, 32, 3), 8, 2),
    Network("MobileNet blocks", _mobile, (16, 16, 16), 8, 2),
    Network("convolutions on one axis", _on_one_axis, (128, 8), 64, 2),
    # This network was not used to choose how convolutions are rewritten.
    Network("U-Net", _u_net, (32, 32, 3), 8, 2),
)
SEQUENCES = (
    Network("LSTM", _recurrent, (32, 16), 64),
    Network("attention", _attention, (32, 64), 16),
)
