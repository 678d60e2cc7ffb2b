"""Networks in TensorFlow 1 code, compiled for a TPU.

The networks are those of `benchmarks.tpu_networks`, in float32.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

import keras_tpu_estimator as kte
from benchmarks import tf1_models
from benchmarks import tpu_by_hand as by_hand
from benchmarks import tpu_models_by_hand as models
from benchmarks.tpu_by_hand import ByHand


@dataclasses.dataclass(frozen=True)
class Lifted:
    """A classifier in TF1 code with Adam, and the same in plain JAX.

    Attributes:
        name: Its name in the table.
        logits: A function that builds the graph from features.
        by_hand: The same in plain JAX.
        shape: The shape of an example.
        dtype: The dtype of an example.
        batch: The number of examples in a step on each core.
    """

    name: str
    logits: Callable[[Any], Any]
    by_hand: ByHand
    shape: tuple[int, ...]
    dtype: str = "float32"
    batch: int = 32

    @property
    def model_fn(self) -> Callable[..., Any]:
        """Returns the `model_fn` of the network."""
        return kte.tf1.model_fn(self._built)

    def _built(self, features: Any, labels: Any, mode: str, params: Any) -> Any:
        logits = self.logits(features)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        optimizer = tf.train.AdamOptimizer(1e-3)
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def _bert(count: int, heads: int) -> Callable[[Any], Any]:
    """Returns a function that builds encoder layers and a classifier."""

    def logits(ids: Any) -> Any:
        width = 64 * heads
        table = tf.get_variable("words", [models.WORDS, width])
        x = tf.gather(table, ids)
        for number in range(count):
            with tf.variable_scope(f"layer_{number}"):
                y = _attention(x, heads)
                x = tf1_models.layer_norm(x + _dropped(y), "norm_1")
                y = tf1_models.dense(x, 4 * width, "wide", tf1_models.gelu)
                y = tf1_models.dense(y, width, "narrow")
                x = tf1_models.layer_norm(x + _dropped(y), "norm_2")
        return tf1_models.dense(x[:, 0], models.CLASSES, "classes")

    return logits


def _attention(x: Any, heads: int) -> Any:
    """Builds attention as in the original BERT."""
    batch, length, width = x.shape.as_list()

    def split(name: str) -> Any:
        y = tf1_models.dense(x, width, name)
        y = tf.reshape(y, [batch, length, heads, width // heads])
        return tf.transpose(y, [0, 2, 1, 3])

    scores = tf.matmul(split("query"), split("key"), transpose_b=True)
    shares = tf.nn.softmax(scores / math.sqrt(width // heads))
    mixed = tf.matmul(_dropped(shares), split("value"))
    mixed = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), x.shape)
    return tf1_models.dense(mixed, width, "mixed")


def _dropped(x: Any) -> Any:
    return tf.nn.dropout(x, rate=models.DROPOUT)


MLP = Lifted(
    "MLP 784-512-512-10, TF1",
    tf1_models.mlp(512, 512, 10),
    ByHand(models.Mlp((784, 512, 512, 10)), by_hand.adam),
    (784,),
    batch=256,
)
BERT = Lifted(
    "two BERT layers with dropout, TF1",
    _bert(2, 4),
    ByHand(models.Bert(2, 256, 4, "float32"), by_hand.adam, draws=True),
    (128,),
    "int32",
    batch=8,
)
