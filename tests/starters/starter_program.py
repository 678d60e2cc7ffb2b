"""Joins the processes of a starter, trains with them, and prints the result.

Its argument is a directory that the processes share.
"""

import json
import sys
from typing import Any

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import jax

from tests.many_hosts.problems import dealt, estimator_of, weights

_STEPS = 8


def train(model_dir: str) -> dict[str, Any]:
    """Trains in all processes; returns the numbers of this process and the weights."""
    kte.initialize()
    estimator = estimator_of(model_dir)
    estimator.train(dealt, max_steps=_STEPS)
    return {
        "number": jax.process_index(),
        "count": jax.process_count(),
        "weights": weights(estimator),
    }


if __name__ == "__main__":
    # One write, so that no other output comes in between.
    sys.stdout.write(f"RESULT {json.dumps(train(sys.argv[1]))}\n")
