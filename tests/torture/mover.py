"""A training process that continues on different numbers of hosts.

Its last argument is JSON: `model_dir`, `steps`, and how it saves.
"""

import json
import sys

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import jax

from tests.many_hosts.problems import Here, dealt
from tests.many_hosts.spread_scenarios import estimator_of
from tests.torture.saves import FORMATS


def main(model_dir: str, steps: list[int], way: str | None) -> None:
    """Trains on all hosts to several steps, one after the other.

    Args:
        model_dir: The directory.
        steps: The steps. The input restarts at each.
        way: How training saves, or `None` for one core.
    """
    kte.initialize()
    estimator = estimator_of(
        Here(model_dir, jax.process_index(), jax.process_count()),
        None if way is None else 1,
        shard_optimizer=way is not None,
        checkpoint_format=FORMATS.get(way),
    )
    for step in steps:
        estimator.train(dealt, max_steps=step)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
