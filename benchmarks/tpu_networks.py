"""Networks in Keras code, compiled for a TPU."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

import keras_tpu_estimator as kte
from benchmarks import tpu_by_hand as by_hand
from benchmarks import tpu_models_by_hand as models
from benchmarks.models import mean_loss
from benchmarks.tpu_by_hand import ByHand


@dataclasses.dataclass(frozen=True)
class Network:
    """A classifier in Keras code, and the same in plain JAX.

    Attributes:
        name: Its name in the table.
        logits: A function in Keras code of features and whether it is training.
        optimizer: A function that makes the optimizer.
        by_hand: The same in plain JAX.
        shape: The shape of an example.
        dtype: The dtype of an example.
        batch: The number of examples in a step on each core.
        policy: Keras's dtype policy.
    """

    name: str
    logits: Callable[[Any, bool], Any]
    optimizer: Callable[[], keras.optimizers.Optimizer]
    by_hand: ByHand
    shape: tuple[int, ...]
    dtype: str = "float32"
    batch: int = 32
    policy: str = "float32"

    def model_fn(
        self, features: Any, labels: Any, mode: str, params: Any
    ) -> kte.TPUEstimatorSpec:
        """Returns the `model_fn` of the network."""
        del params
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self.policy)
        try:
            logits = self.logits(features, mode == kte.ModeKeys.TRAIN)
        finally:
            keras.config.set_dtype_policy(before)
        loss = mean_loss(labels, ops.cast(logits, "float32"))
        optimizer = kte.CrossShardOptimizer(self.optimizer())
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def _mlp(*sizes: int) -> Callable[[Any, bool], Any]:
    def logits(x: Any, is_training: bool) -> Any:
        del is_training
        *hidden, classes = sizes
        for units in hidden:
            x = layers.Dense(units, "relu")(x)
        return layers.Dense(classes)(x)

    return logits


def _bert(count: int, width: int, heads: int) -> Callable[[Any, bool], Any]:
    """Returns a function that computes encoder layers and a classifier."""

    def logits(ids: Any, is_training: bool) -> Any:
        def dropped(x: Any) -> Any:
            return layers.Dropout(models.DROPOUT)(x, training=is_training)

        x = layers.Embedding(models.WORDS, width)(ids)
        for _ in range(count):
            y = _attention(x, heads, dropped)
            x = layers.LayerNormalization()(x + dropped(y))
            y = layers.Dense(4 * width, "gelu")(x)
            y = layers.Dense(width)(y)
            x = layers.LayerNormalization()(x + dropped(y))
        return layers.Dense(models.CLASSES)(x[:, 0])

    return logits


def _attention(x: Any, heads: int, dropped: Callable[[Any], Any]) -> Any:
    """Computes attention as in the original BERT."""
    _, length, width = x.shape

    def split(y: Any) -> Any:
        return ops.reshape(y, (-1, length, heads, width // heads))

    query, key, value = (split(layers.Dense(width)(x)) for _ in range(3))
    scores = ops.einsum("blhd,bmhd->bhlm", query, key)
    shares = ops.softmax(scores / math.sqrt(width // heads))
    mixed = ops.einsum("bhlm,bmhd->blhd", dropped(shares), value)
    return layers.Dense(width)(ops.reshape(mixed, (-1, length, width)))


def _resnet(x: Any, is_training: bool) -> Any:
    """Computes ResNet-50 with the strides in the 3 x 3 convolutions."""

    def convolution(x: Any, filters: int, size: int, strides: int = 1) -> Any:
        x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x, training=is_training)

    x = layers.ReLU()(convolution(x, 64, 7, 2))
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for filters, blocks, first in models.STAGES:
        for block in range(blocks):
            strides = 1 if block else first
            y = layers.ReLU()(convolution(x, filters, 1))
            y = layers.ReLU()(convolution(y, filters, 3, strides))
            y = convolution(y, 4 * filters, 1)
            if not block:
                x = convolution(x, 4 * filters, 1, strides)
            x = layers.ReLU()(x + y)
    return layers.Dense(1000)(ops.mean(x, axis=(1, 2)))


def _adam() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(1e-3)


TINY = Network(
    "tiny MLP 16-16-10",
    _mlp(16, 10),
    _adam,
    ByHand(models.Mlp((16, 16, 10)), by_hand.adam),
    (16,),
)
MLP = Network(
    "MLP 784-512-512-10",
    _mlp(512, 512, 10),
    _adam,
    ByHand(models.Mlp((784, 512, 512, 10)), by_hand.adam),
    (784,),
    batch=256,
)
WIDE = Network(
    "20 million weights, slots shared",
    _mlp(2048, 2048, 2048, 2048, 2048, 10),
    _adam,
    ByHand(models.Mlp((2048,) * 6 + (10,)), by_hand.adam, shares_slots=True),
    (2048,),
    batch=8,
)
BERT = Network(
    "two BERT layers with dropout, bfloat16",
    _bert(2, 256, 4),
    lambda: keras.optimizers.AdamW(1e-4, weight_decay=0.01),
    ByHand(models.Bert(2, 256, 4), by_hand.adamw, draws=True),
    (128,),
    "int32",
    batch=8,
    policy="bfloat16",
)
BERT_BASE = Network(
    "BERT-base, bfloat16",
    _bert(12, 768, 12),
    lambda: keras.optimizers.AdamW(1e-4, weight_decay=0.01),
    ByHand(models.Bert(12, 768, 12), by_hand.adamw, draws=True),
    (128,),
    "int32",
    batch=32,
    policy="bfloat16",
)
RESNET = Network(
    "ResNet-50, bfloat16",
    _resnet,
    lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    ByHand(models.ResNet(), by_hand.momentum),
    (224, 224, 3),
    "bfloat16",
    batch=64,
    policy="mixed_bfloat16",
)
