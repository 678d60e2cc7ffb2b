"""Tests that the requirements are right on platforms where no tests run."""

import pathlib
import tomllib

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads(
    (pathlib.Path(__file__).parents[1] / "pyproject.toml").read_text()
)
CPU, ANY = "tensorflow-cpu", "tensorflow"
# Python's names of the platforms; uv uses "x86_64" for Windows.
PLATFORMS = {
    ("linux", "x86_64"): CPU,
    ("linux", "aarch64"): ANY,
    ("darwin", "arm64"): ANY,
    ("win32", "AMD64"): ANY,
    ("win32", "x86_64"): ANY,
}


def required(requirements, platform):
    """The names of the distributions that a platform requires without extras."""
    system, machine = platform
    here = {"sys_platform": system, "platform_machine": machine, "extra": ""}
    return [
        each.name
        for each in map(Requirement, requirements)
        if each.marker is None or each.marker.evaluate(here)
    ]


@pytest.mark.parametrize("platform", PLATFORMS, ids="-".join)
@pytest.mark.parametrize(
    "requirements",
    [
        PROJECT["project"]["dependencies"],
        PROJECT["dependency-groups"]["serving"],
    ],
    ids=["package", "serving"],
)
def test_one_distribution_of_tensorflow_is_required(requirements, platform):
    names = required(requirements, platform)
    assert [name for name in names if name in (CPU, ANY)] == [PLATFORMS[platform]]


@pytest.mark.parametrize("platform", PLATFORMS, ids="-".join)
def test_devices_are_required_only_on_platforms_with_wheels(platform):
    extras = PROJECT["project"]["optional-dependencies"]
    has_tpu = bool(required(extras["tpu"], platform))
    has_cuda = bool(required(extras["cuda"], platform))
    assert has_tpu == (platform == ("linux", "x86_64"))
    assert has_cuda == (platform[0] == "linux")


@pytest.mark.parametrize("platform", PLATFORMS, ids="-".join)
def test_tests_need_only_distributions_with_wheels(platform):
    names = required(PROJECT["project"]["optional-dependencies"]["test"], platform)
    # libtpu and openvino's wheels for ARM Linux need a newer glibc.
    assert ("jax" in names) == (platform == ("linux", "x86_64"))
    assert ("openvino" in names) == (platform != ("linux", "aarch64"))
