"""Joins a cluster, and prints the number of this process.

The environment variable STARTED_ARGUMENTS has the arguments of `initialize`. The last
is a time limit in seconds.
"""

import json
import os

import jax

import keras_tpu_estimator as kte


def main() -> None:
    """Joins, and counts the cores of all processes."""
    arguments = os.environ["STARTED_ARGUMENTS"].split()
    if arguments:
        address, *numbers = arguments
        count, number, timeout = map(int, numbers)
        kte.initialize(address, count, number, initialization_timeout=timeout)
    # The configuration reads the environment.
    config = kte.RunConfig()
    kte.initialize()
    start = {
        "number": jax.process_index(),
        "of": config.num_worker_replicas,
        "chief": config.is_chief,
        "cores": jax.device_count(),
    }
    print("\nRESULT " + json.dumps({"start": start}), flush=True)


if __name__ == "__main__":
    main()
