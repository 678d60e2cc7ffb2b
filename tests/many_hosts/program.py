"""Runs scenarios one after the other, and writes one line of JSON for each.

Its arguments are a directory and the names of scenarios.
"""

import json
import logging
import sys
from typing import Any

import jax

import keras_tpu_estimator as kte
from tests.many_hosts import (
    caught_scenarios,
    other_scenarios,
    spread_scenarios,
    training_scenarios,
)
from tests.many_hosts.problems import Here


def hash_seeds(here: Here) -> dict[str, Any]:
    """Returns a hash, which depends on the seed of hashes."""
    return {"hash": hash(here.directory)}


SCENARIOS = (
    {"hash_seeds": hash_seeds}
    | training_scenarios.SCENARIOS
    | other_scenarios.SCENARIOS
    | spread_scenarios.SCENARIOS
    | caught_scenarios.SCENARIOS
)


def main(directory: str, *names: str) -> None:
    """Runs scenarios, each in a separate directory."""
    kte.initialize()
    here = Here(directory, jax.process_index(), jax.process_count())
    for name in names:
        try:
            _write(name, SCENARIOS[name](here / name))
        except Exception as error:
            _write(name, {"error": f"{type(error).__name__}: {error}"})
            raise


def _write(name: str, result: dict[str, Any]) -> None:
    # On a separate line, because libraries also write.
    sys.stdout.write(f"\nRESULT {json.dumps({name: result})}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main(*sys.argv[1:])
