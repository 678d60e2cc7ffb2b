"""The contestant of this package, with default settings."""

from collections.abc import Callable
from typing import Any

import keras_tpu_estimator as kte
from benchmarks.models import Classifier


def estimator(
    network: Classifier,
    model_dir: str,
    iterations: int = 100,
    use_tpu: bool = True,
    model_fn: Callable[..., Any] | None = None,
) -> kte.TPUEstimator:
    """Returns an estimator of a network, which writes summaries and checkpoints.

    Args:
        network: The network.
        model_dir: An empty directory.
        iterations: Steps of one loop. Defaults to 100.
        use_tpu: Whether to use all devices. Defaults to `True`.
        model_fn: A replacement for the network's own `model_fn`.
    """
    return kte.TPUEstimator(
        model_fn or network.model_fn(),
        model_dir=model_dir,
        config=kte.RunConfig(tpu_config=kte.TPUConfig(iterations_per_loop=iterations)),
        use_tpu=use_tpu,
        train_batch_size=network.batch,
        eval_batch_size=network.batch,
        predict_batch_size=network.batch,
    )
