"""What a `host_call` on every step costs, the smallest steps there are."""

import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras_tpu_estimator as kte
from benchmarks.datasets import endless
from benchmarks.models import Mlp
from benchmarks.table import Goal
from benchmarks.table import Row
from benchmarks.timing import median_seconds

_STEPS = 8000


def rows() -> Iterator[Row]:
    """Steps per second with and without it."""
    mlp = Mlp((32, 32, 2), batch=64)
    dataset = endless(mlp, examples=12_800)
    losses: list[float] = []

    def host_fn(loss: Any) -> None:
        losses.append(float(loss[0]))

    with tempfile.TemporaryDirectory() as directory:
        contestants = {
            "with": _estimator(mlp, directory + "/with", host_fn),
            "without": _estimator(mlp, directory + "/without", None),
        }
        seconds = median_seconds(
            {
                name: lambda each=each: each.train(
                    lambda params: dataset, steps=_STEPS
                )
                for name, each in contestants.items()
            },
            repetitions=7,
        )
    if len(losses) != 8 * _STEPS:
        raise RuntimeError(
            f"Expected a call on each of {8 * _STEPS} steps. Received: "
            f"{len(losses)}"
        )
    yield Row(
        f"train, {mlp}, with a host_call on every step against without",
        _STEPS / seconds["with"],
        _STEPS / seconds["without"],
        "steps/s",
        Goal("ratio", least=0.80),
    )


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
