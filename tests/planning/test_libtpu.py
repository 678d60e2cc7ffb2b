"""Without a TPU, its compiler prints nothing and disturbs no other code."""

import os
import subprocess
import sys

import pytest

from keras_tpu_estimator.ground.base import backend as _backend
from keras_tpu_estimator.planning import libtpu

_PROGRAM = """
import keras_tpu_estimator
import jax
from keras_tpu_estimator.planning import topologies
topologies.parse("v4-8").machine()
print(jax.devices()[0].platform, float(jax.numpy.ones(3).sum()))
topologies.parse("v5e-4").machine()
"""
_OF_LIBTPU = ("JAX_PLATFORMS", "TPU_", "ALLOW_MULTIPLE_LIBTPU_LOAD")


def _started():
    # The environment of a user who has installed it and set nothing.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OF_LIBTPU)
    }
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_programs_without_a_tpu_run_on_the_cpu_and_say_nothing():
    # At once, as libtpu would not have it by itself.
    programs = [_started(), _started()]
    outputs = [program.communicate() for program in programs]
    assert outputs == [("cpu 3.0\n", "")] * 2


def test_without_libtpu_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setattr(libtpu, "is_installed", lambda: False)
    with pytest.raises(ModuleNotFoundError, match=r"keras-tpu-estimator\[tpu"):
        libtpu.devices("v5e:8x8")


def test_a_topology_that_libtpu_does_not_know_is_refused():
    with pytest.raises(ValueError, match="knows no topology 'v5e:3x3'"):
        libtpu.devices("v5e:3x3")


@pytest.fixture
def environment(monkeypatch):
    """Without what tells libtpu that there is no TPU."""
    for name in _backend._WITHOUT_TPU:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    monkeypatch.setattr(_backend, "_TPU_DEVICES", ())
    return monkeypatch


def test_libtpu_is_told_that_there_is_no_tpu(environment):
    environment.setenv("TPU_WORKER_HOSTNAMES", "own")
    _backend.import_keras()
    assert os.environ["TPU_ACCELERATOR_TYPE"] == "v5litepod-4"
    assert os.environ["TPU_WORKER_HOSTNAMES"] == "own"


def test_libtpu_is_told_nothing_where_there_may_be_a_tpu(environment, tmp_path):
    (tmp_path / "accel0").touch()
    devices = (str(tmp_path / "accel*"),)
    environment.setattr(_backend, "_TPU_DEVICES", devices)
    _backend.import_keras()
    assert "TPU_ACCELERATOR_TYPE" not in os.environ
    environment.setattr(_backend, "_TPU_DEVICES", ())
    environment.delenv("TPU_SKIP_MDS_QUERY")
    _backend.import_keras()
    assert "TPU_ACCELERATOR_TYPE" not in os.environ
