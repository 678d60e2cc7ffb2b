"""The time and memory of embedding tables that are sharded over eight cores.

A step reads and updates only the rows of its batch. Therefore the time must not depend
on the size of the table, and each core must hold an eighth of it.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
import keras
import numpy as np

import keras_tpu_estimator as kte
from benchmarks.isolation import run_module
from benchmarks.table import Goal, Row

_SMALL, _LARGE = 10_000, 4_000_000
_DIMENSION, _BATCH, _LENGTH = 16, 256, 8
_ITERATIONS, _LOOPS = 50, 20
_EIGHT_CORES = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
}


def rows() -> Iterator[Row]:
    """Returns rows for milliseconds per step, and for the share of one core."""
    found = run_module("benchmarks.embeddings", _EIGHT_CORES)
    yield Row(
        f"step with a table of {_LARGE:,} rows, against one of {_SMALL:,}",
        found["large"],
        found["small"],
        "ms",
        Goal("ratio", most=1.3),
    )
    yield Row(
        f"table and slot of {_LARGE:,} rows, a core of 8 against all",
        found["core"],
        found["whole"],
        "MB",
        Goal("ratio", most=0.13),
    )


def measure() -> dict[str, float]:
    """Measures both in a process with eight cores."""
    found: dict[str, float] = {}
    # They take turns, so that other load slows both.
    for name, size in 2 * (("small", _SMALL), ("large", _LARGE)):
        with tempfile.TemporaryDirectory() as directory:
            watch = _Watch(size)
            _estimator(size, directory).train(
                lambda params, size=size: _batches(size),
                [watch],
                steps=_ITERATIONS * _LOOPS,
            )
        best = min(found.get(name, np.inf), watch.milliseconds)
        found[name] = best
        found["core"], found["whole"] = watch.megabytes
    return found


def _estimator(size: int, directory: str) -> kte.TPUEstimator:
    tables = kte.experimental
    spec = tables.EmbeddingConfigSpec(
        optimization_parameters=tables.AdagradParameters(0.1),
        table_to_config_dict={"table": tables.TableConfig(size, _DIMENSION)},
        feature_to_config_dict={"ids": tables.FeatureConfig("table")},
    )
    return kte.TPUEstimator(
        _model_fn,
        directory,
        kte.RunConfig(
            tpu_config=kte.TPUConfig(iterations_per_loop=_ITERATIONS),
            # Only the final checkpoint.
            save_checkpoints_steps=10**9,
        ),
        train_batch_size=_BATCH,
        embedding_config_spec=spec,
    )


def _model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    outputs = keras.layers.Dense(1)(features["ids"])
    loss = keras.ops.mean((outputs[:, 0] - labels) ** 2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    train_op = optimizer.minimize(loss)
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def _batches(size: int) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    batches = [
        (
            {"ids": rng.integers(0, size, (_BATCH, _LENGTH), "int32")},
            rng.normal(size=_BATCH).astype("float32"),
        )
        for _ in range(_ITERATIONS)
    ]
    while True:
        yield from batches


class _Watch(kte.hooks.SessionRunHook):
    """Records the fastest loop, and the megabytes of tables on one core and on all."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.milliseconds = np.inf
        self.megabytes = (0.0, 0.0)
        self._last = np.inf

    def before_run(
        self, run_context: kte.hooks.SessionRunContext
    ) -> kte.hooks.SessionRunArgs:
        return kte.hooks.SessionRunArgs("loss")

    def after_run(
        self,
        run_context: kte.hooks.SessionRunContext,
        run_values: kte.hooks.SessionRunValues,
    ) -> None:
        float(run_values.results)
        now = time.perf_counter()
        taken = (now - self._last) / _ITERATIONS * 1e3
        if taken > 0:
            self.milliseconds = min(self.milliseconds, taken)
        self._last = now

    def end(self, session: Any) -> None:
        tables = [x for x in jax.live_arrays() if x.shape[:1] == (self._size,)]
        parts = [x.addressable_shards[0].data for x in tables]
        self.megabytes = (
            sum(x.nbytes for x in parts) / 1e6,
            sum(x.nbytes for x in tables) / 1e6,
        )


if __name__ == "__main__":
    print(json.dumps(measure()))
