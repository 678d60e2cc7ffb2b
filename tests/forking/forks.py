"""Fixtures with which the processes that a test starts are forks.

To import what each of them needs takes longer than most of what they do. So one
process of each kind imports it once, and is forked. What a test has is a client
of the fork. Who kills that waits for the end of its output: the fork ends a
moment later. Tests about starts, imports, stops and locks start processes as
they are. Forks of one process have one hash seed; where those of hosts should
differ, there are two.
"""

import atexit
import contextlib
import functools
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from unittest import mock

import pytest

from tests.forking.client import PREFIX

_HERE = pathlib.Path(__file__).parent
_ROOT = str(_HERE.parents[1])
_PYTHON = sys.executable
_TENSORFLOW = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "PYTHONUTF8": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
# By the name of a socket, the modules of a template, and its environment.
_KINDS = {
    "package": (
        ("keras_tpu_estimator", "h5py"),
        {},
    ),
    "first_request.py": (
        ("-jax", "-jaxlib", "-keras", "tensorflow"),
        _TENSORFLOW,
    ),
    "tensorflow_graph.py": (
        ("-jax", "-jaxlib", "tensorflow", "keras"),
        _TENSORFLOW | {"KERAS_BACKEND": "tensorflow"},
    ),
}


@pytest.fixture
def forked_programs() -> Iterator[None]:
    """Processes of a test are forked from one that has imported the package."""
    with forking("package"):
        yield


@pytest.fixture(scope="module")
def forked_trials() -> Iterator[None]:
    """The trials of exports are forked, in this test and those below."""
    with forking("first_request.py"):
        yield


@pytest.fixture(scope="module")
def forked_rebuilding() -> Iterator[None]:
    """So is what rebuilds models for TensorFlow."""
    with forking("tensorflow_graph.py"):
        yield


@contextlib.contextmanager
def forking(kind: str, seeds: int = 1) -> Iterator[None]:
    """Processes of this kind that are started in a `with` block are forks.

    Args:
        kind: The name of a socket.
        seeds: How many hash seeds hosts should have. Defaults to 1.
    """
    if not hasattr(os, "pidfd_open"):
        # Only Linux has what the templates need. Elsewhere they are no forks.
        yield
        return
    paths = os.pathsep.join(_started(kind, seed) for seed in range(seeds))
    with (
        mock.patch.object(sys, "executable", str(_folder() / "python")),
        mock.patch.dict(os.environ, {PREFIX + kind: paths}),
    ):
        yield


@functools.cache
def _folder() -> pathlib.Path:
    """A folder with a client, and with the sockets of templates."""
    folder = tempfile.TemporaryDirectory(prefix="forks-")
    atexit.register(folder.cleanup)
    client = pathlib.Path(folder.name, "python")
    # Without what else is there, Python starts in an instant.
    client.write_text(f"#!{_PYTHON} -SI\n{(_HERE / 'client.py').read_text()}")
    client.chmod(0o700)
    return client.parent


@functools.cache
def _started(kind: str, seed: int) -> str:
    """The socket of a template, whose clients wait until it is there."""
    modules, environment = _KINDS[kind]
    own = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        path = str(_folder() / f"{kind}-{seed}")
        listening.bind(path)
        listening.listen(64)
        number = listening.fileno()
        template = subprocess.Popen(
            [_PYTHON, "-P", str(_HERE / "template.py"), str(number), *modules],
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(own), "OPENBLAS_NUM_THREADS": "1"}
            | environment,
            stdin=subprocess.PIPE,
            pass_fds=[number],
            process_group=0,
        )
    atexit.register(template.communicate)
    return path
