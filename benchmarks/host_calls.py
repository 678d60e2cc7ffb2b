"""The cost of a `host_call` in every step, with the smallest steps."""

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import keras_tpu_estimator as kte
from benchmarks.datasets import endless
from benchmarks.models import Mlp
from benchmarks.table import Goal, Row
from benchmarks.timing import median_seconds

_STEPS = 8000
_REPETITIONS = 7


def rows() -> Iterator[Row]:
    """Returns rows for steps per second with and without a `host_call`."""
    mlp = Mlp((32, 32, 2), batch=64)
    dataset = endless(mlp, examples=12_800)
    losses: list[float] = []

    def keep(loss: Any) -> None:
        losses.append(float(loss[0]))

    with tempfile.TemporaryDirectory() as directory:
        writer = kte.summary.create_file_writer(os.path.join(directory, "own"))

        def write(loss: Any) -> None:
            with writer.as_default():
                kte.summary.scalar("every_loss", loss[0])

        seconds = median_seconds(
            {
                name: _training(mlp, dataset, directory, name, host_fn)
                for name, host_fn in {
                    "keeps its number": keep,
                    "writes a scalar summary": write,
                    "without": None,
                }.items()
            },
            _REPETITIONS,
        )
    if len(losses) != (_REPETITIONS + 1) * _STEPS:
        raise RuntimeError(
            f"Expected a call on each of {(_REPETITIONS + 1) * _STEPS} steps. "
            f"Received: {len(losses)}"
        )
    without = seconds.pop("without")
    for what, each in seconds.items():
        yield Row(
            f"train, {mlp}, with a host_call on every step that {what}, "
            "against without",
            _STEPS / each,
            _STEPS / without,
            "steps/s",
            Goal("ratio", least=0.80),
        )


def _training(
    mlp: Mlp,
    dataset: Any,
    directory: str,
    name: str,
    host_fn: Callable[[Any], None] | None,
) -> Callable[[], Any]:
    estimator = _estimator(mlp, os.path.join(directory, name), host_fn)
    return lambda: estimator.train(lambda params: dataset, steps=_STEPS)


def _estimator(
    mlp: Mlp, model_dir: str, host_fn: Callable[[Any], None] | None
) -> kte.TPUEstimator:
    base = mlp.model_fn()

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        spec = base(features, labels, mode, params)
        host_call = host_fn and (host_fn, [spec.loss[None]])
        return kte.TPUEstimatorSpec(
            mode, loss=spec.loss, train_op=spec.train_op, host_call=host_call
        )

    return kte.TPUEstimator(
        model_fn,
        model_dir=model_dir,
        config=kte.RunConfig(tpu_config=kte.TPUConfig(iterations_per_loop=100)),
        train_batch_size=mlp.batch,
    )
