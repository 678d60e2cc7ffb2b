"""A job of Ray Train, whose workers run `program.py`.

Its argument is a directory that the processes share.
"""

import json
import os
import sys
from typing import Any

import ray
from ray.train import ScalingConfig
from ray.train.v2.jax import JaxTrainer


def work(config: dict[str, Any]) -> None:
    """Trains in one worker, which Ray has already joined to the others."""
    from tests.starters import starter_program as program

    sys.stdout.write(f"RESULT {json.dumps(program.train(config['directory']))}\n")


def main(directory: str) -> None:
    """Runs the job on two workers of this machine."""
    # Ray's workers inherit the environment.
    os.environ |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.getcwd()}
    ray.init(num_cpus=3, include_dashboard=False)
    JaxTrainer(
        work,
        train_loop_config={"directory": directory},
        scaling_config=ScalingConfig(num_workers=2),
    ).fit()


if __name__ == "__main__":
    main(sys.argv[1])
