"""Training on GPUs, including input, compared with a JAX loop and Keras's `fit`.

All contestants copy the same batches from host memory. The benchmark takes less than
ten minutes on one GPU.
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

# The networks, with the loops of a round, because a call takes some milliseconds.
_CASES = ((networks.MLP, 500), (networks.BERT_BASE, 4), (networks.RESNET, 4))
_ITERATIONS, _ROUNDS = 10, 3
Batches = tuple[np.ndarray, np.ndarray]


def rows() -> Iterator[Row]:
    """Returns rows for the steps per second of each network, or none without a GPU."""
    if jax.default_backend() != "gpu":
        print("No GPU was found. This group is omitted.", file=sys.stderr)
        return
    for network, loops in _CASES:
        yield from compared(network, loops)


def compared(network: Network, loops: int) -> Iterator[Row]:
    """Measures the rates of one network.

    Args:
        network: The network.
        loops: The number of loops in a round.
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
    """Returns features and labels for the steps of one loop."""
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
            # This benchmark does not measure the overhead of a call.
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
            # The number of copies equals that of input in single batches.
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
