"""Training that is limited by input, compared with a jitted JAX loop."""

import dataclasses
import functools
import itertools
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import ops

import keras_tpu_estimator as kte
from benchmarks.agreement import check_equal
from benchmarks.table import Goal, Row
from benchmarks.timing import median_seconds

_ITERATIONS = 100
_RATE = 1e-3
# The number of batches in memory, which are repeated.
_BATCHES = 8


@dataclasses.dataclass(frozen=True)
class Load:
    """The input of a measurement.

    Attributes:
        shape: The shape of a batch of `float32`.
        steps: The number of batches that a run reads.
        least: The lower bound of the ratio of speeds.
    """

    shape: tuple[int, ...]
    steps: int
    least: float

    @property
    def megabytes(self) -> float:
        """The megabytes of a batch."""
        return math.prod(self.shape) * 4 / 1e6

    def batches(self) -> np.ndarray:
        """The stacked batches in memory."""
        numbers = np.arange(_BATCHES * math.prod(self.shape)) % 1000 / 1000
        return numbers.astype("float32").reshape(_BATCHES, *self.shape)


_LOADS = (
    Load((32, 224, 224, 3), steps=200, least=0.9),
    Load((64, 4096), steps=2000, least=1.0),
)


def rows() -> Iterator[Row]:
    """Returns rows for the megabytes per second of steps that only read their batch."""
    for load in _LOADS:
        batches = load.batches()
        for name, source in _SOURCES.items():
            ours, peer = _speeds(load, functools.partial(source, batches))
            yield Row(
                f"input, batches of {load.megabytes:.0f} MB from {name}, "
                "against a jitted loop",
                ours,
                peer,
                "MB/s",
                Goal("ratio", least=load.least),
            )


def _dataset(batches: np.ndarray) -> Any:
    """Returns a `tf.data.Dataset` that makes batches of examples in memory."""
    import tensorflow as tf

    examples = batches.reshape(-1, *batches.shape[2:])
    dataset = tf.data.Dataset.from_tensor_slices(examples).repeat()
    return dataset.batch(batches.shape[1], drop_remainder=True).prefetch(2)


def _generator(batches: np.ndarray) -> Iterator[np.ndarray]:
    """Yields batches of examples in memory, in random order."""
    count, size = batches.shape[:2]
    examples = batches.reshape(-1, *batches.shape[2:])
    rng = np.random.default_rng(0)
    while True:
        for chosen in rng.permutation(count * size).reshape(count, size):
            yield examples[chosen]


def _array(batches: np.ndarray) -> np.ndarray:
    """Returns one batch."""
    return batches[0]


_SOURCES: dict[str, Callable[[np.ndarray], Any]] = {
    "tf.data": _dataset,
    "a generator": _generator,
    "an array": _array,
}


def _speeds(load: Load, source: Callable[[], Any]) -> tuple[float, float]:
    """Measures megabytes per second of this package, and of a loop in plain JAX."""
    short, long = load.steps // 10, load.steps
    by_hand = _StepLoop()
    with tempfile.TemporaryDirectory() as directory:
        ours = kte.TPUEstimator(
            _model_fn,
            model_dir=directory,
            config=kte.RunConfig(
                tpu_config=kte.TPUConfig(iterations_per_loop=_ITERATIONS)
            ),
            train_batch_size=load.shape[0],
        )
        seconds = median_seconds(
            {
                # This benchmark does not measure the overhead of a call.
                "ours, short": lambda: ours.train(lambda params: source(), steps=short),
                "peer, short": lambda: by_hand.train(source(), short),
                "ours": lambda: ours.train(lambda params: source(), steps=long),
                "peer": lambda: by_hand.train(source(), long),
            },
            repetitions=3,
        )
        weights = {
            "ours": ours.get_variable_value("weight"),
            "peer": np.asarray(by_hand.weight),
        }
    check_equal("weight", weights, rtol=1e-3)
    megabytes = load.megabytes * (long - short)
    return (
        megabytes / (seconds["ours"] - seconds["ours, short"]),
        megabytes / (seconds["peer"] - seconds["peer, short"]),
    )


def _model_fn(features: Any, mode: str, params: Any) -> kte.TPUEstimatorSpec:
    del params
    weight = keras.Variable(1.0, name="weight")
    loss = weight * ops.mean(features)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(_RATE))
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


class _StepLoop:
    """A jitted step function that is called for each batch."""

    def __init__(self) -> None:
        self.weight = jnp.float32(1)
        self._step = jax.jit(self._trained, donate_argnums=0)

    def train(self, source: Any, steps: int) -> None:
        """Trains, and waits for the end."""
        for batch in itertools.islice(_arrays(source), steps):
            self.weight, loss = self._step(self.weight, batch)
        jax.block_until_ready((self.weight, loss))

    @staticmethod
    def _trained(weight: jax.Array, batch: jax.Array) -> tuple[Any, Any]:
        def loss_of(weight: jax.Array) -> jax.Array:
            return weight * jnp.mean(batch)

        loss, gradient = jax.value_and_grad(loss_of)(weight)
        return weight - _RATE * gradient, loss


def _arrays(source: Any) -> Iterable[np.ndarray]:
    if isinstance(source, np.ndarray):
        return itertools.repeat(source)
    if hasattr(source, "as_numpy_iterator"):
        return source.as_numpy_iterator()
    return source
