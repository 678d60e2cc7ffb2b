"""The time and memory until the first step of BERT-base in TF1 code."""

import json
import pathlib
import re
import tempfile
import time
from typing import Any

import numpy as np
import tensorflow as tf

import keras_tpu_estimator as kte
from benchmarks import tf1_models

_WORDS, _LENGTH, _BATCH = 30_522, 128, 2


def measure() -> dict[str, float]:
    """Returns the measurements of this process, with memory in megabytes."""
    network = tf1_models.bert(_WORDS, 768, 12, 12, classes=2)
    sizes = {}

    def spec(*args: Any, **kwargs: Any) -> kte.tf1.TPUEstimatorSpec:
        for variable in tf.compat.v1.global_variables():
            sizes[variable.op.name] = variable.shape.num_elements()
        return kte.tf1.TPUEstimatorSpec(*args, **kwargs)

    model_fn = kte.tf1.model_fn(tf1_models.model_fn_of(network, spec))
    ids = np.ones((_BATCH, _LENGTH), "int32")
    labels = np.zeros(_BATCH, "int32")
    # TensorFlow and JAX have already allocated their own memory.
    before = _peak()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        estimator = kte.TPUEstimator(
            model_fn,
            model_dir=directory,
            config=kte.RunConfig(save_checkpoints_steps=None),
            train_batch_size=_BATCH,
        )
        hook = _AtFirstStep()
        estimator.train(lambda params: iter([(ids, labels)]), [hook], steps=1)
    own = [size for name, size in sizes.items() if "Adam" not in name]
    return {
        "seconds": hook.at - start,
        "peak": hook.peak - before,
        "variables": sum(sizes.values()) * 4 / 1e6,
        "parameters": sum(own),
    }


class _AtFirstStep(kte.hooks.SessionRunHook):
    """Records the time and the memory after the first step."""

    def after_run(
        self,
        run_context: kte.hooks.SessionRunContext,
        run_values: kte.hooks.SessionRunValues,
    ) -> None:
        del run_context, run_values
        self.at, self.peak = time.perf_counter(), _peak()


def _peak() -> float:
    # `ru_maxrss` would include the memory of the parent process.
    status = pathlib.Path("/proc/self/status").read_text("utf-8")
    (kilobytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kilobytes) * 1024 / 1e6


if __name__ == "__main__":
    tf.config.list_physical_devices()
    print(json.dumps(measure()))
