"""Prints one table: `python -m benchmarks [group ...]`."""

import argparse
import os
import sys

import keras_tpu_estimator as kte  # isort: split

import jax
import keras

from benchmarks import (
    calls,
    checkpoints,
    cores,
    embeddings,
    exported,
    first_steps,
    gpu,
    host_calls,
    hosts,
    imports,
    inference,
    layers,
    loop_lengths,
    memory,
    predictions,
    tf1,
    tpu,
    train,
)
from benchmarks import input as input_benchmark
from benchmarks.table import render

_GROUPS = {
    "train": train.rows,
    "loop_lengths": loop_lengths.rows,
    "convolutions": layers.convolutions,
    "sequences": layers.sequences,
    "inference": inference.rows,
    "predictions": predictions.rows,
    "input": input_benchmark.rows,
    "exported": exported.rows,
    "calls": calls.rows,
    "first_steps": first_steps.rows,
    "cores": cores.rows,
    "embeddings": embeddings.rows,
    "host_calls": host_calls.rows,
    "hosts": hosts.rows,
    "memory": memory.rows,
    "checkpoints": checkpoints.rows,
    "imports": imports.rows,
    "tf1": tf1.rows,
    "gpu": gpu.rows,
    "tpu": tpu.rows,
}


def main() -> int:
    """Runs the groups named on the command line, or all of them.

    Returns:
        0 if every goal was reached, or else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument(
        "groups", nargs="*", help=f"of {', '.join(_GROUPS)}; default: all"
    )
    chosen = parser.parse_args().groups or list(_GROUPS)
    unknown = set(chosen) - _GROUPS.keys()
    if unknown:
        parser.error(f"expected groups of {[*_GROUPS]}, not {[*unknown]}")
    rows = []
    for group in chosen:
        print(f"Measuring: {group}", file=sys.stderr)
        rows += _GROUPS[group]()
    versions = (f"{each.__name__} {each.__version__}" for each in (kte, keras, jax))
    print(f"{', '.join(versions)}; {os.cpu_count()} cores\n")
    print(render(rows))
    return 0 if all(row.is_ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
