"""The training speed of TF1 code, and the cost of converting a BERT-base.

With the path of a Python that has TensorFlow 2.15 in `TENSORFLOW_2_15_PYTHON`,
the original is also measured.
"""

import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import keras_tpu_estimator as kte
from benchmarks import tf1_models
from benchmarks.agreement import check_equal
from benchmarks.datasets import batches, endless
from benchmarks.estimators import estimator
from benchmarks.isolation import run_module
from benchmarks.models import Classifier, Mlp
from benchmarks.networks import CONVOLUTIONS, SEQUENCES
from benchmarks.table import Goal, Row
from benchmarks.timing import median_seconds

_ORIGINAL = os.environ.get("TENSORFLOW_2_15_PYTHON")
_BATCHES = 8
_MLP = Mlp((784, 128, 10), batch=128)
_ATTENTION = SEQUENCES[-1]
# With overlapping pools.
_CONVOLUTIONS = CONVOLUTIONS[1]


def rows() -> Iterator[Row]:
    """Returns rows for steps per second, and the time and memory of a conversion."""
    mlp = tf1_models.mlp(*_MLP.sizes[1:])
    yield from _of_training(_MLP, mlp, "mlp", 2000)
    attention = tf1_models.attention(_ATTENTION.classes)
    yield from _of_training(_ATTENTION, attention, "attention", 300)
    convolutions = tf1_models.convolutions(_CONVOLUTIONS.classes)
    yield from _of_training(_CONVOLUTIONS, convolutions, "convolutions", 200)
    yield from _of_lifting()


def _of_training(
    classifier: Classifier, network: Callable[..., Any], name: str, steps: int
) -> Iterator[Row]:
    rates = _steps_per_second(classifier, network, steps)
    what = f"train TF1 code, {classifier}, against "
    yield Row(
        what + "Keras code",
        rates["TF1"],
        rates["Keras"],
        "steps/s",
        Goal("ratio", least=0.9),
    )
    if _ORIGINAL:
        yield Row(
            what + "TensorFlow 2.15",
            rates["TF1"],
            _original(name, classifier, steps),
            "steps/s",
            Goal("ratio", least=1.2),
        )


def _steps_per_second(
    classifier: Classifier, network: Callable[..., Any], steps: int
) -> dict[str, float]:
    """Measures the rates of TF1 code and of Keras code for the same network."""
    dataset = endless(classifier, _BATCHES * classifier.batch)
    spec = kte.tf1.TPUEstimatorSpec
    model_fn = kte.tf1.model_fn(tf1_models.model_fn_of(network, spec))
    with (
        tempfile.TemporaryDirectory() as first,
        tempfile.TemporaryDirectory() as second,
    ):
        contestants = {
            "TF1": estimator(classifier, first, model_fn=model_fn),
            "Keras": estimator(classifier, second),
        }

        def train(each: kte.TPUEstimator) -> None:
            each.train(lambda params: dataset, steps=steps)

        seconds = median_seconds(
            {
                name: functools.partial(train, each)
                for name, each in contestants.items()
            },
            repetitions=5,
        )
        data = batches(classifier, _BATCHES * classifier.batch)
        losses = {
            name: each.evaluate(lambda params: data)["loss"]
            for name, each in contestants.items()
        }
    # They start with different weights, and overfit the data.
    check_equal("final loss", {"none": 1.0, **_plus_one(losses)}, rtol=0.05)
    return {name: steps / each for name, each in seconds.items()}


def _plus_one(losses: dict[str, Any]) -> dict[str, float]:
    return {name: 1 + float(loss) for name, loss in losses.items()}


def _original(name: str, classifier: Classifier, steps: int) -> float:
    """Measures the rate of the original estimator with another Python."""
    settings = {
        "network": name,
        "shape": list(classifier.shape),
        "classes": classifier.classes,
        "batch": classifier.batch,
        "batches": _BATCHES,
        "steps": steps,
    }
    done = subprocess.run(
        [str(_ORIGINAL), "-m", "tf1_original", json.dumps(settings)],
        cwd=os.path.dirname(__file__),
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        encoding="utf-8",
    )
    if done.returncode:
        raise RuntimeError(f"TensorFlow 2.15 failed:\n{done.stderr}")
    return float(done.stdout.splitlines()[-1])


def _of_lifting() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        first = run_module("benchmarks.tf1_lifting", environment)
        second = run_module("benchmarks.tf1_lifting", environment)
    what = f"BERT-base as TF1 code, {first['parameters']:,.0f} parameters: "
    yield Row(
        what + "to the first step",
        first["seconds"],
        second["seconds"],
        "s",
        Goal("ours", most=60),
    )
    yield Row(
        what + "again, from the compile cache, against that",
        second["seconds"],
        first["seconds"],
        "s",
        Goal("ratio", most=1 / 3),
    )
    yield Row(
        what + "peak memory, against its variables",
        first["peak"],
        first["variables"],
        "MB",
        Goal("ratio", most=3),
    )
