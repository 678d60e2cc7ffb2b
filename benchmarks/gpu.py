"""Training on GPUs, input included: against a loop by hand, and Keras's `fit`.

All contestants are given the same batches, in the memory of the host, and copy
each of them. It takes less than ten minutes of one GPU.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np

import keras_tpu_estimator as kte
from benchmarks import tpu_models_by_hand as models
from benchmarks import tpu_networks as networks
from benchmarks.table import Goal, Row
from benchmarks.timing import median_seconds
from benchmarks.tpu_networks import Network

# With the loops of a round: a call itself costs some milliseconds.
_CASES = ((networks.MLP, 500), (networks.BERT_BASE, 4), (networks.RESNET, 4))
_ITERATIONS, _ROUNDS = 10, 3
Batches = tuple[np.ndarray, np.ndarray]


def rows() -> Iterator[Row]:
    """Steps per second of each network; none where there is no GPU."""
    if jax.default_backend() != "gpu":
        print("There is no GPU; left out.", file=sys.stderr)
        return
    for network, loops in _CASES:
        yield from compared(network, loops)


def compared(network: Network, loops: int) -> Iterator[Row]:
    """The rates of one network.

    Args:
        network: The network.
        loops: How many loops of steps a round has.
    """
    batches, steps = _batches(network), _ITERATIONS * loops
    with tempfile.TemporaryDirectory() as directory:
        seconds = median_seconds(
            {
                "ours": _estimator(network, batches, steps, directory),
                "a loop by hand": _loop(network, batches, loops),
                "Keras fit": _fit(network, batches, steps),
            },
            _ROUNDS,
        )
    for peer, least in (("a loop by hand", 0.97), ("Keras fit", 1.0)):
        yield Row(
            f"train, {network.name}, batch {len(batches[1][0])}, against {peer}",
            steps / seconds["ours"],
            steps / seconds[peer],
            "steps/s",
            Goal("ratio", least=least),
        )


def _batches(network: Network) -> Batches:
    """Features and labels of the steps of one loop."""
    rng = np.random.default_rng(0)
    size = network.batch * jax.device_count()
    shape = (_ITERATIONS, size, *network.shape)
    if network.dtype == "int32":
        x = rng.integers(0, models.WORDS, shape, "int32")
    else:
        x = rng.random(shape, "float32").astype(jax.numpy.dtype(network.dtype))
    return x, rng.integers(0, models.CLASSES, shape[:2], "int32")


def _endless(batches: Batches) -> Iterator[Batches]:
    while True:
        yield from zip(*batches, strict=True)


def _estimator(
    network: Network, batches: Batches, steps: int, directory: str
) -> Callable[[], object]:
    estimator = kte.TPUEstimator(
        network.model_fn,
        config=kte.RunConfig(
            model_dir=directory,
            # The overhead of a call is not measured here.
            save_checkpoints_steps=None,
            save_checkpoints_secs=None,
            save_summary_steps=None,
            log_step_count_steps=None,
            tpu_config=kte.TPUConfig(iterations_per_loop=_ITERATIONS),
            random_bits="rbg",
        ),
        train_batch_size=len(batches[1][0]),
    )
    return lambda: estimator.train(lambda params: _endless(batches), steps=steps)


def _loop(network: Network, batches: Batches, loops: int) -> Callable[[], object]:
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), batches
    )
    lowered, kinds = network.by_hand.lowered(np.array(jax.devices()), shapes)
    run = lowered.compile()
    state = jax.tree.map(_initial, kinds["state"])

    def train() -> None:
        nonlocal state
        for _ in range(loops):
            # As many copies as with input that comes in single batches.
            stacked = jax.tree.map(lambda leaf: np.stack([*leaf]), batches)
            places = jax.tree.map(lambda leaf: leaf.sharding, kinds["input"])
            state, losses = run(state, jax.device_put(stacked, places))
        assert np.isfinite(losses).all()  # noqa: S101 - a benchmark

    return train


def _initial(leaf: Any) -> jax.Array:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.device_put(jax.random.key(0, impl="rbg"), leaf.sharding)
    rng = np.random.default_rng(0)
    values = 0.02 * rng.standard_normal(leaf.shape).astype("float32")
    return jax.device_put(abs(values).astype(leaf.dtype), leaf.sharding)


def _fit(network: Network, batches: Batches, steps: int) -> Callable[[], object]:
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(network.policy)
    inputs = keras.Input(network.shape, dtype=network.dtype)
    model = keras.Model(inputs, network.logits(inputs, True))
    keras.config.set_dtype_policy(policy)
    model.compile(
        network.optimizer(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=_ITERATIONS,
    )
    data = _endless(batches)
    return lambda: model.fit(data, steps_per_epoch=steps, epochs=1, verbose=0)
