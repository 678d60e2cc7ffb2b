"""Our contestant, with the settings that users have by default."""

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
    """An estimator of a network, summaries and checkpoints included.

    Args:
        network: The network.
        model_dir: An empty directory.
        iterations: Steps of one loop. Defaults to 100.
        use_tpu: Whether to use all devices. Defaults to `True`.
        model_fn: Another way to write the network. Defaults to its own.
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
