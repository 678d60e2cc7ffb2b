"""GPU topologies have names and peaks without a GPU."""

import pytest

from keras_tpu_estimator.planning import gpus, topologies
from keras_tpu_estimator.planning.gpus import GPUS, GpuTopology


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("h100:1x8", GpuTopology("h100", 1, 8)),
        ("H100: 2x8", GpuTopology("h100", 2, 8)),
        ("h100:4", GpuTopology("h100", 1, 4)),
        ("h100-16", GpuTopology("h100", 2, 8)),
        ("a100-8", GpuTopology("a100", 1, 8)),
        ("h200:1x1", GpuTopology("h200", 1, 1)),
    ],
)
def test_names(name, topology):
    assert topologies.parse(name) == topology
    assert topologies.parse(topology.name) == topology


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("h100", "such as 'h100:1x8'"),
        ("h100:1x1x8", "such as 'h100:1x8'"),
        ("h100:0x8", "Hosts must have 1 to 8 GPUs each"),
        ("h100:2x9", "Received: h100:2x9. Pass"),
        ("h100-12", "Received: h100:1x12. Pass"),
    ],
)
def test_other_names_are_refused(name, said):
    with pytest.raises(ValueError, match=said):
        topologies.parse(name)


def test_the_network_between_hosts_is_slower():
    one, two = topologies.parse("h100:1x8"), topologies.parse("h100:2x8")
    assert two.chip.network_speed < one.chip.network_speed
    assert two.of_one_host() == one
    assert (two.num_cores, two.num_hosts, two.chips_per_host) == (16, 2, 8)


def test_an_error_without_the_plugin(monkeypatch):
    monkeypatch.setattr(gpus, "is_installed", lambda: False)
    with pytest.raises(ModuleNotFoundError, match=r"keras-tpu-estimator\[cuda"):
        topologies.parse("a100:1x7").machine()


@pytest.mark.parametrize("kind", GPUS)
def test_each_line_of_the_target_is_complete(kind):
    target = GPUS[kind].target
    assert f'device_description_str: "{GPUS[kind].chip.device_kind}"' in target
    assert target.count("{") == target.count("}") == 3
    assert GPUS[kind].chip.clock == pytest.approx(1.6e9, rel=0.2)


def test_an_error_if_the_plugin_has_not_started(monkeypatch):
    def get_topology_desc(*args, **settings):
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(gpus, "is_installed", lambda: True)
    monkeypatch.setattr(gpus.topologies, "get_topology_desc", get_topology_desc)
    with pytest.raises(RuntimeError, match="JAX_SKIP_CUDA_CONSTRAINTS_CHECK"):
        topologies.parse("a100:1x6").machine()
