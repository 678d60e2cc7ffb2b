"""Training with the default loop length, or with a loop duration."""

import os
import tempfile
from collections.abc import Callable, Iterator

import keras_tpu_estimator as kte
from benchmarks.datasets import endless
from benchmarks.models import Mlp
from benchmarks.table import Goal, Row
from benchmarks.timing import median_seconds

_STEPS = 3000
_REPETITIONS = 15
_CHOSEN = "iterations_per_loop=100"


def rows() -> Iterator[Row]:
    """Returns rows for the steps per second of a second `train` and its checkpoint."""
    mlp = Mlp((32, 32, 2), batch=64)
    dataset = endless(mlp, examples=12_800)
    at_least = Goal("ratio", least=0.9)
    with tempfile.TemporaryDirectory() as directory:

        def training(
            name: str, config: kte.TPUConfig, use_tpu: bool = True
        ) -> Callable[[], object]:
            ours = kte.TPUEstimator(
                mlp.model_fn(),
                model_dir=os.path.join(directory, name),
                config=kte.RunConfig(tpu_config=config),
                use_tpu=use_tpu,
                train_batch_size=mlp.batch,
            )
            return lambda: ours.train(lambda params: dataset, steps=_STEPS)

        contestants = {
            _CHOSEN: training("100", kte.TPUConfig(iterations_per_loop=100)),
            "no length of loops": training("none", kte.TPUConfig()),
            "no length of loops and use_tpu=False": training(
                "none_off_tpu", kte.TPUConfig(), use_tpu=False
            ),
            'loops of "5s"': training("5s", kte.TPUConfig(iterations_per_loop="5s")),
        }
        seconds = median_seconds(contestants, _REPETITIONS)
    chosen = seconds.pop(_CHOSEN)
    for name, own in seconds.items():
        yield Row(
            f"train, {mlp}, with {name}, against {_CHOSEN}",
            _STEPS / own,
            _STEPS / chosen,
            "steps/s",
            at_least,
        )
