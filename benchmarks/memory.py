"""The memory growth of a long training and a long prediction."""

import itertools
import json
import tempfile
from collections.abc import Iterator

import numpy as np
import psutil

import keras_tpu_estimator as kte
from benchmarks import spread_memory
from benchmarks.datasets import endless
from benchmarks.estimators import estimator
from benchmarks.isolation import run_module
from benchmarks.models import Mlp
from benchmarks.table import Goal, Row

_STEPS, _WARM_STEPS = 20_000, 2_000
_ROWS, _WARM_ROWS = 1_000_000, 100_000
_FLAT = Goal("ratio", least=0.95, most=1.05)


def rows() -> Iterator[Row]:
    """Returns rows for the resident memory at the end, compared with the warm-up."""
    sizes = run_module("benchmarks.memory")
    for measure, name in (
        (f"{_STEPS:,} steps, against step {_WARM_STEPS:,}", "train"),
        (f"{_ROWS:,} predictions, against {_WARM_ROWS:,}", "predict"),
    ):
        yield Row(
            f"resident memory after {measure}",
            sizes[f"{name}, end"],
            sizes[f"{name}, warm"],
            "MB",
            _FLAT,
        )
    yield from spread_memory.rows()


def measure() -> dict[str, float]:
    """Measures the resident memory of this process in megabytes."""
    mlp = Mlp((32, 32, 2), batch=64)
    sizes = {}
    with tempfile.TemporaryDirectory() as directory:
        ours = estimator(mlp, directory)
        dataset = endless(mlp, examples=12_800)
        watch = _MemoryAtStep(_WARM_STEPS)
        ours.train(lambda params: dataset, [watch], steps=_STEPS)
        sizes["train, warm"], sizes["train, end"] = watch.megabytes, _resident()

        batch = np.zeros((mlp.batch, mlp.sizes[0]), "float32")
        predictions = ours.predict(
            lambda params: itertools.repeat(batch, _ROWS // mlp.batch)
        )
        for count, _ in enumerate(predictions, start=1):
            if count == _WARM_ROWS:
                sizes["predict, warm"] = _resident()
        sizes["predict, end"] = _resident()
    return sizes


class _MemoryAtStep(kte.hooks.SessionRunHook):
    """Records the resident memory at a step."""

    def __init__(self, step: int):
        self._step = step
        self.megabytes = 0.0

    def after_run(
        self,
        run_context: kte.hooks.SessionRunContext,
        run_values: kte.hooks.SessionRunValues,
    ) -> None:
        del run_values
        step = run_context.session.run("global_step")
        if not self.megabytes and step >= self._step:
            self.megabytes = _resident()


def _resident() -> float:
    return psutil.Process().memory_info().rss / 1e6


if __name__ == "__main__":
    print(json.dumps(measure()))
