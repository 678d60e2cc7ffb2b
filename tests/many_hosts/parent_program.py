"""Starts child processes from a host, which import its script.

Its arguments are a directory, a Python, and the ways to start children.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import jax

from tests.many_hosts.problems import Here, dealt, estimator_of, weights

_CODE = "from tests.many_hosts import parent_program as p; p.helped(print)"


def helped(tell: Callable[[Any], object]) -> None:
    """Makes an estimator like the parent process."""
    kte.initialize()
    # A separate directory, because children do not agree on one.
    estimator = estimator_of(None)
    tell([estimator.config.num_worker_replicas, jax.process_count()])


def _by_multiprocessing(way: str, python: str) -> list[int]:
    context = multiprocessing.get_context(way)
    context.set_executable(python)
    reader, writer = context.Pipe(duplex=False)
    helper = context.Process(target=helped, args=(writer.send,))
    helper.start()
    helper.join()
    return reader.recv() if reader.poll() else [helper.exitcode]


def _by_subprocess(way: str, python: str) -> list[int]:
    done = subprocess.run(
        [python, "-c", _CODE], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


def _by_fork(way: str, python: str) -> list[int]:
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # JAX's threads do not exist in the child, and are not needed.
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        helped(lambda said: os.write(writer, json.dumps(said).encode()))
        # Runs all exit handlers.
        sys.exit()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(writer)
    with os.fdopen(reader) as told:
        return json.loads(told.read() or "[]") + ([code] if code else [])


WAYS = {
    "spawn": _by_multiprocessing,
    "forkserver": _by_multiprocessing,
    "subprocess": _by_subprocess,
    "fork": _by_fork,
}


def main(directory: str, python: str, *ways: str) -> None:
    """Starts children, and trains with the other hosts."""
    kte.initialize()
    estimator = estimator_of(directory, host_timeout_secs=60)
    # A process with devices must not be forked.
    helpers = {way: WAYS[way](way, python) for way in ways}
    here = Here(directory, jax.process_index(), jax.process_count())
    estimator.train(dealt, max_steps=4)
    said = {"hosts": here.hosts, "helpers": helpers}
    trained = weights(estimator)["global_step"]
    told = json.dumps({"parents": said | {"steps": trained}})
    sys.stdout.write(f"\nRESULT {told}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
