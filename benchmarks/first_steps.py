"""The first step of deep models in a new process, against Keras's `fit`."""

import collections
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import layers, ops

import keras_tpu_estimator as kte
from benchmarks.isolation import run_module
from benchmarks.models import adam
from benchmarks.table import Goal, Row

_CONTESTANT = "FIRST_STEPS_OF"
_REPETITIONS = 3
_AGAIN_STEPS = 50
_DENSE_LAYERS, _UNITS, _DENSE_BATCH = 300, 32, 64
# A BERT-base, as `benchmarks.tf1_lifting` has it.
_WORDS, _LENGTH, _WIDTH, _LAYERS, _HEADS, _BERT_BATCH = 30_522, 128, 768, 12, 12, 2

_Batch = tuple[np.ndarray, np.ndarray]


def rows() -> Iterator[Row]:
    """Seconds to the first step, and seconds of the steps afterwards."""
    figures = collections.defaultdict[tuple[str, str], list[float]](list)
    for _ in range(_REPETITIONS):
        for contestant in ("estimator", "fit", "lifted_bert", "bert_in_fit"):
            module = "benchmarks.first_steps"
            if contestant == "lifted_bert":
                module = "benchmarks.tf1_lifting"
            for key, seconds in run_module(module, {_CONTESTANT: contestant}).items():
                figures[contestant, key].append(seconds)
    medians = {key: statistics.median(each) for key, each in figures.items()}
    deep = f"{_DENSE_LAYERS} residual dense layers: "
    for key, measured in (("seconds", "first step"), ("again", "50 more steps")):
        yield Row(
            f"{deep}{measured}, against fit",
            medians["estimator", key],
            medians["fit", key],
            "s",
            Goal("ratio", most=1.1),
        )
    yield Row(
        "BERT-base as TF1 code: first step, against Keras code in fit",
        medians["lifted_bert", "seconds"],
        medians["bert_in_fit", "seconds"],
        "s",
        Goal("ratio", most=1.5),
    )


def measure(contestant: str) -> dict[str, float]:
    """Measures one contestant in this process, in seconds."""
    if contestant == "bert_in_fit":
        ids = np.ones((_BERT_BATCH, _LENGTH), "int32")
        batch = ids, np.zeros(_BERT_BATCH, "int32")
        # The measured time of the estimator also includes building the model.
        return {
            "seconds": _seconds(lambda steps: _in_fit(_bert(), batch)(steps), steps=1)
        }
    inputs = np.random.default_rng(0).normal(size=(_DENSE_BATCH, _UNITS))
    batch = inputs.astype("float32"), np.zeros(_DENSE_BATCH, "int32")
    with tempfile.TemporaryDirectory() as directory:
        if contestant == "fit":
            train = _in_fit(_residual(), batch)
        else:
            train = _in_estimator(_residual(), batch, directory)
        first = _seconds(train, steps=1)
        _seconds(train, steps=_AGAIN_STEPS)
        return {"seconds": first, "again": _seconds(train, steps=_AGAIN_STEPS)}


def _seconds(train: Callable[[int], object], steps: int) -> float:
    start = time.perf_counter()
    train(steps)
    return time.perf_counter() - start


def _in_fit(model: keras.Model, batch: _Batch) -> Callable[[int], object]:
    def batches() -> Iterator[_Batch]:
        while True:
            yield batch

    return lambda steps: model.fit(batches(), steps_per_epoch=steps, verbose=0)


def _in_estimator(
    model: keras.Model, batch: _Batch, directory: str
) -> Callable[[int], object]:
    def input_fn(params: Any) -> Iterator[_Batch]:
        del params
        while True:
            yield batch

    estimator = kte.from_keras(
        model,
        config=kte.RunConfig(model_dir=directory),
        use_tpu=False,
        train_batch_size=len(batch[1]),
    )
    return lambda steps: estimator.train(input_fn, steps=steps)


def _compiled(inputs: Any, logits: Any) -> keras.Model:
    model = keras.Model(inputs, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(adam(), loss)
    return model


def _residual() -> keras.Model:
    """A model of many dense layers, each added to its input."""
    # With larger weights, the output of this many layers would overflow.
    small = keras.initializers.RandomNormal(stddev=1e-3, seed=0)
    x = inputs = keras.Input((_UNITS,))
    for _ in range(_DENSE_LAYERS):
        x = x + layers.Dense(_UNITS, "relu", kernel_initializer=small)(x)
    return _compiled(inputs, layers.Dense(2)(x))


def _bert() -> keras.Model:
    """The network of `tf1_models.bert` as Keras code."""
    ids = keras.Input((_LENGTH,), dtype="int32")
    x = layers.Embedding(_WORDS, _WIDTH)(ids)
    x = x + layers.Embedding(512, _WIDTH)(ops.arange(_LENGTH))
    x = layers.LayerNormalization()(x)
    for _ in range(_LAYERS):
        x = layers.LayerNormalization()(x + _attention(x))
        wide = layers.Dense(4 * _WIDTH, "gelu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(_WIDTH)(wide))
    pooled = layers.Dense(_WIDTH, "tanh")(x[:, 0])
    return _compiled(ids, layers.Dense(2)(pooled))


def _attention(x: Any) -> Any:
    def heads() -> Any:
        split = ops.reshape(layers.Dense(_WIDTH)(x), (-1, _LENGTH, _HEADS, size))
        return ops.transpose(split, (0, 2, 1, 3))

    size = _WIDTH // _HEADS
    queries, keys, values = heads(), heads(), heads()
    scores = ops.matmul(queries, ops.transpose(keys, (0, 1, 3, 2))) / size**0.5
    mixed = ops.matmul(ops.softmax(scores), values)
    joined = ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (-1, _LENGTH, _WIDTH))
    return layers.Dense(_WIDTH)(joined)


if __name__ == "__main__":
    print(json.dumps(measure(os.environ[_CONTESTANT])))
