"""Continues training in a shelf store in a second process.

Usage: python second_process.py STEPS, with SHELF_ROOT set. Prints the results of an
evaluation as one line of JSON.
"""

import json
import os
import pathlib
import sys

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.append(str(pathlib.Path(__file__).parents[1]))

import keras  # noqa: E402
import shelf  # noqa: E402
from helpers import (
    batches_of,  # noqa: E402
    estimator_of,  # noqa: E402
    linear,  # noqa: E402
    model_fn_of,  # noqa: E402
    regression_data,  # noqa: E402
    repeated,  # noqa: E402
)

URL = "shelf://bucket/run"
X, Y = regression_data()


def estimator(model_dir=URL):
    """An estimator with a stateful optimizer."""
    return estimator_of(
        model_fn_of(linear, lambda: keras.optimizers.Adam(0.01)),
        model_dir,
        iterations=1,
        config={"save_checkpoints_steps": 2, "keep_checkpoint_max": 2},
    )


def main(steps):
    """Trains, and evaluates."""
    shelf.register()
    trained = estimator().train(repeated(X, Y), max_steps=steps)
    result = trained.evaluate(batches_of(X, Y))
    sys.stdout.write(json.dumps({k: v.item() for k, v in result.items()}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
