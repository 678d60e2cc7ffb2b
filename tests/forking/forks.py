"""Fixtures that fork the processes that a test starts.

Importing libraries takes longer than most of these processes' work. Therefore one
template process of each kind imports them once, and is forked. The test's child process
is a client of the fork. A test that kills the client must wait for the end of its
output, because the fork ends a moment later.

Tests of starts, imports, stops and locks start real processes. Forks of one process
share a hash seed; if hosts need different seeds, there are two templates.
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
# The modules and the environment of each template, by the socket's name.
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
    """Forks a test's processes from one that has imported the package."""
    with forking("package"):
        yield


@pytest.fixture(scope="module")
def forked_trials() -> Iterator[None]:
    """Forks the processes that try exports, in this test and the following ones."""
    with forking("first_request.py"):
        yield


@pytest.fixture(scope="module")
def forked_rebuilding() -> Iterator[None]:
    """Forks the processes that rebuild models for TensorFlow."""
    with forking("tensorflow_graph.py"):
        yield


@contextlib.contextmanager
def forking(kind: str, seeds: int = 1) -> Iterator[None]:
    """Forks the processes of a kind that are started in a `with` block.

    Args:
        kind: The name of a socket.
        seeds: The number of different hash seeds of hosts. Defaults to 1.
    """
    if not hasattr(os, "pidfd_open"):
        # The templates need Linux. Elsewhere the processes are not forked.
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
    """Makes a folder with a client and the sockets of templates."""
    folder = tempfile.TemporaryDirectory(prefix="forks-")
    atexit.register(folder.cleanup)
    client = pathlib.Path(folder.name, "python")
    # Without site packages, Python starts at once.
    client.write_text(f"#!{_PYTHON} -SI\n{(_HERE / 'client.py').read_text()}")
    client.chmod(0o700)
    return client.parent


@functools.cache
def _started(kind: str, seed: int) -> str:
    """Starts a template; clients of its socket wait until it is ready."""
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
