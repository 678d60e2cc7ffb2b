"""Tests two processes that join, and one that waits in vain."""

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.xdist_group("hosts")

_SCRIPT = """
import atexit
import os
import sys
import time

import jax
import numpy as np

if os.environ["KTE_PROCESS_ID"] == "1":
    # Its exit takes longer than the timeout.
    atexit.register(time.sleep, 2)

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.hosts import starting

kte.initialize(shutdown_timeout_seconds=1)
kte.initialize()
cluster = starting.ensure_started()

from jax.experimental import multihost_utils

assert jax.process_count() == cluster.num_processes == 2
assert jax.process_index() == cluster.process_id
numbers = multihost_utils.process_allgather(np.array(jax.process_index()))
# One write, so that no output of Gloo comes in between.
sys.stdout.write(
    f"{jax.local_device_count()} {jax.device_count()} {numbers.tolist()}\\n"
)
"""


@pytest.mark.usefixtures("forked_programs")
def test_two_processes_of_two_cores(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(_SCRIPT))
    command = "-m keras_tpu_estimator launch --processes 2 --cores 2".split()
    done = subprocess.run(
        [sys.executable, *command, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Gloo also has its own lines.
    assert {"[0] 2 4 [0, 1]", "[1] 2 4 [0, 1]"} <= set(done.stdout.splitlines())


@pytest.mark.usefixtures("forked_programs")
def test_jax_does_not_abort_before_the_error():
    environment = {
        "KTE_COORDINATOR_ADDRESS": "127.0.0.1:9",
        "KTE_NUM_PROCESSES": "2",
        "KTE_PROCESS_ID": "1",
    }
    code = """
import keras_tpu_estimator as kte
try:
    kte.initialize(initialization_timeout=1)
except TimeoutError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "All 2 processes must join at 127.0.0.1:9 within 1 seconds. Process 0"
    )
