import os
import subprocess
import sys

import pytest

from keras_tpu_estimator.base.hosts import parent_process
from keras_tpu_estimator.base.hosts.cluster import Cluster

PLACES = [Cluster("10.0.0.1:8476", 4, 1), Cluster("[fe80::1]:80", 2, 0)]
_CODE = """
import os, sys
from keras_tpu_estimator.base.hosts import parent_process
print(parent_process.parent_clusters())
sys.stdout.flush()
"""


@pytest.fixture(autouse=True)
def marked(monkeypatch):
    """The environment after this process has joined a cluster."""
    monkeypatch.delenv(parent_process.PLACES_VARIABLE, raising=False)
    assert parent_process.parent_clusters() == []
    parent_process.mark([*PLACES, Cluster()])
    yield
    parent_process.unmark()


def test_process_may_join_by_its_own_environment():
    """A program that replaces it by `exec` may also join."""
    assert parent_process.parent_clusters() == []
    parent_process.mark([])
    assert parent_process.parent_clusters() == []


@pytest.mark.usefixtures("forked_programs")
def test_child_processes_may_not_join():
    # Also through a shell.
    done = subprocess.run(
        ["sh", "-c", '"$0" -c "$1"; exit', sys.executable, _CODE],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{PLACES}\n"
    parent_process.unmark()
    assert parent_process.PLACES_VARIABLE not in os.environ
