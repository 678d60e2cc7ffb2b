"""Names become topologies with the devices of libtpu."""

import os
import subprocess
import sys

import pytest

from keras_tpu_estimator.base.common import backend as _backend
from keras_tpu_estimator.planning import topologies
from keras_tpu_estimator.planning.chips import CHIPS
from keras_tpu_estimator.planning.topologies import TpuTopology

_PROGRAM = """
import keras_tpu_estimator
import jax
from keras_tpu_estimator.planning import topologies
topologies.parse("v4-8").machine()
print(jax.devices()[0].platform, float(jax.numpy.ones(3).sum()))
topologies.parse("v5e-4").machine()
"""
_OF_LIBTPU = ("JAX_PLATFORMS", "TPU_", "ALLOW_MULTIPLE_LIBTPU_LOAD")


@pytest.mark.parametrize(
    ("name", "canonical", "cores", "hosts"),
    [
        ("v5e:4x4", "v5e:4x4", 16, 4),
        ("v5e-16", "v5e:4x4", 16, 4),
        ("v5litepod-16", "v5e:4x4", 16, 4),
        ("V5LitePod-16", "v5e:4x4", 16, 4),
        (" TPU v5 lite : 2x2", "v5e:2x2", 4, 1),
        ("v5e-1", "v5e:1x1", 1, 1),
        ("v5litepod-8", "v5e:2x4", 8, 1),
        ("v5e:16x16", "v5e:16x16", 256, 64),
        ("2xv5e:16x16", "2xv5e:16x16", 512, 128),
        ("3 x V5LitePod-16", "3xv5e:4x4", 48, 12),
        ("1xv5e:4x4", "v5e:4x4", 16, 4),
        ("2x7x:2x2x1", "2xtpu7x:2x2x1", 16, 2),
        # Two TensorCores of a chip, which work as one.
        ("v4-8", "v4:2x2x1", 4, 1),
        ("v4-32", "v4:2x2x4", 16, 4),
        ("v4-128", "v4:4x4x4", 64, 16),
        ("v4-1024", "v4:8x8x8", 512, 128),
        ("v4:8x8x16", "v4:8x8x16", 1024, 256),
        ("v5p-8", "v5p:2x2x1", 4, 1),
        ("v5p:2x2x2", "v5p:2x2x2", 8, 2),
        ("v5p-12288", "v5p:16x16x24", 6144, 1536),
        ("v6e-4", "v6e:2x2", 4, 1),
        ("v6e:2x2", "v6e:2x2", 4, 1),
        # Two TensorCores that are separate devices.
        ("tpu7x:2x2x1", "tpu7x:2x2x1", 8, 1),
        ("tpu7x-16", "tpu7x:2x2x2", 16, 2),
        ("Ironwood 2x2x1", "tpu7x:2x2x1", 8, 1),
    ],
)
def test_names_of_slices(name, canonical, cores, hosts):
    topology = topologies.parse(name)
    assert topology.name == canonical
    assert topology == topologies.parse(canonical)
    assert (topology.num_cores, topology.num_hosts) == (cores, hosts)


@pytest.mark.parametrize(
    "name",
    [
        "v4:2x2x1",
        "v4:2x2x4",
        "v5e:1x1",
        "v5e:2x4",
        "v5e:4x4",
        "v5p:2x2x2",
        "v6e:2x2",
        "tpu7x:2x2x2",
    ],
)
def test_the_devices_match_the_topology(name):
    topology = topologies.parse(name)
    machine = topology.machine()
    assert machine.first.device_kind == topology.chip.device_kind
    assert machine.platform == "tpu"
    assert len(machine.devices) == topology.num_cores
    assert machine.num_hosts == topology.num_hosts
    assert len(machine.host_devices) == topology.of_one_host().num_cores
    assert machine == topology.machine()


@pytest.mark.parametrize("kind", CHIPS)
def test_libtpu_supports_the_smallest_and_the_largest_slice(kind):
    shapes = topologies.shapes(kind)
    assert len(set(shapes)) == len(shapes)
    for shape in (shapes[0], shapes[4]):
        topology = TpuTopology(CHIPS[kind], shape)
        assert len(topology.machine().devices) == topology.num_cores


@pytest.mark.parametrize(
    ("name", "said"),
    [("0xv5e:4x4", "1 to 256 slices"), ("2xh100:1x8", "Only TPUs have slices")],
)
def test_impossible_slices(name, said):
    with pytest.raises(ValueError, match=said):
        topologies.parse(name)


def test_slices_have_their_own_devices():
    topology = topologies.parse("2xv5e:2x2")
    machine = topology.machine()
    assert machine.slices == (0,) * 4 + (1,) * 4
    assert machine.num_hosts == topology.num_hosts == 2
    assert topology.of_one_host() == topologies.parse("v5e:2x2")


def test_one_host_is_a_topology():
    topology = topologies.parse("v5e:4x4").of_one_host()
    assert topology.name == "v5e:2x2"
    assert topology.of_one_host() == topology
    assert topologies.parse("v4-32").of_one_host().name == "v4:2x2x1"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("v5e:4x5", "Did you mean 'v5e:4x4'.* shapes 1x1, 2x2, 2x4"),
        ("v5e:8x4", "Did you mean 'v5e:4x8'"),
        ("v4-12", "Did you mean 'v4-(8|16)'.*number of TensorCores"),
        ("2xv5e:4x5", "Did you mean 'v5e:4x4'"),
        ("v5e-12", "Did you mean 'v5litepod-(8|16)'.*number of chips"),
        ("v4:2x2", "Did you mean 'v4:2x2x1'"),
        ("v6litepods-16", "Pass one of the shapes"),
        ("v5e", "Pass one of the shapes 1x1"),
        ("v5e:0x0", "Did you mean 'v5e:1x1'"),
        ("v9-8", "kinds v4, v5e, v5p, v6e, tpu7x"),
        ("", "kinds v4, v5e, v5p, v6e, tpu7x"),
        ("k80:1x8", "kinds v4, v5e, v5p, v6e, tpu7x"),
    ],
)
def test_unknown_names_have_suggestions(name, said):
    with pytest.raises(ValueError, match=f"Unknown TPU topology {name!r}.*{said}"):
        topologies.parse(name)


def test_the_name_must_be_a_string():
    with pytest.raises(TypeError, match="must be a string. Received: 16"):
        topologies.parse(16)


def test_unknown_shapes_are_rejected():
    with pytest.raises(ValueError, match="No v5e has 3x3 chips. Pass one"):
        TpuTopology(CHIPS["v5e"], (3, 3))


def _started():
    # The environment of a user who has only installed libtpu.
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


def test_programs_without_a_tpu_run_silently_on_the_cpu():
    # The error is raised at once, unlike libtpu's.
    programs = [_started(), _started()]
    outputs = [program.communicate() for program in programs]
    assert outputs == [("cpu 3.0\n", "")] * 2


def test_an_error_without_libtpu(monkeypatch):
    monkeypatch.setattr(topologies, "is_libtpu_installed", lambda: False)
    with pytest.raises(ModuleNotFoundError, match=r"keras-tpu-estimator\[tpu"):
        topologies.libtpu_devices("v5e:8x8")


def test_topologies_that_libtpu_does_not_support():
    with pytest.raises(ValueError, match="does not support the topology 'v5e:3x3'"):
        topologies.libtpu_devices("v5e:3x3")


@pytest.fixture
def environment(monkeypatch):
    """Removes the settings that tell libtpu that no TPU exists."""
    for name in _backend._WITHOUT_TPU:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    monkeypatch.setattr(_backend, "_TPU_DEVICES", ())
    return monkeypatch


def test_libtpu_options_without_a_tpu(environment):
    environment.setenv("TPU_WORKER_HOSTNAMES", "own")
    _backend.import_keras()
    assert os.environ["TPU_ACCELERATOR_TYPE"] == "v5litepod-4"
    assert os.environ["TPU_WORKER_HOSTNAMES"] == "own"


def test_libtpu_options_stay_where_a_tpu_may_exist(environment, tmp_path):
    (tmp_path / "accel0").touch()
    devices = (str(tmp_path / "accel*"),)
    environment.setattr(_backend, "_TPU_DEVICES", devices)
    _backend.import_keras()
    assert "TPU_ACCELERATOR_TYPE" not in os.environ
    environment.setattr(_backend, "_TPU_DEVICES", ())
    environment.delenv("TPU_SKIP_MDS_QUERY")
    _backend.import_keras()
    assert "TPU_ACCELERATOR_TYPE" not in os.environ
