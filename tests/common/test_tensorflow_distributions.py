"""Tests that two installed versions of TensorFlow are reported in one line."""

import logging
import sys
import types

import pytest

from keras_tpu_estimator.base.common import tensorflow_session
from keras_tpu_estimator.base.common.tensorflow_session import hide_gpus


@pytest.fixture(autouse=True)
def nothing_warned():
    """Resets the warning before and after a test."""
    tensorflow_session.warn_of_two_versions.cache_clear()
    yield
    tensorflow_session.warn_of_two_versions.cache_clear()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Writes the metadata of distributions, and hides all others."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def write(**versions):
        for name, version in versions.items():
            folder = tmp_path / f"{name}-{version}.dist-info"
            folder.mkdir()
            shown = name.replace("_", "-")
            (folder / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {shown}\nVersion: {version}\n"
            )

    return write


@pytest.fixture
def imported(monkeypatch):
    """Imports TensorFlow."""
    config = types.SimpleNamespace(set_visible_devices=lambda *_: None)
    module = types.SimpleNamespace(config=config)
    monkeypatch.setitem(sys.modules, "tensorflow", module)


def test_two_versions_are_one_line(install, imported, caplog):
    install(tensorflow="2.20.0", tensorflow_cpu="2.21.0")
    hide_gpus()
    hide_gpus()
    ((name, level, line),) = caplog.record_tuples
    assert (name, level) == ("keras_tpu_estimator", logging.WARNING)
    assert "tensorflow 2.20.0 and tensorflow-cpu 2.21.0" in line
    assert "pip uninstall -y tensorflow tensorflow-cpu" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "versions",
    [
        {},
        {"tensorflow": "2.20.0"},
        {"tensorflow_cpu": "2.21.0"},
        {"tensorflow": "2.21.0", "tensorflow_cpu": "2.21.0"},
    ],
)
def test_one_version_is_not_logged(versions, install, imported, caplog):
    install(**versions)
    hide_gpus()
    assert not caplog.record_tuples
    found = tensorflow_session.installed()
    assert sorted(found.values()) == sorted(versions.values())


def test_nothing_is_searched_without_tensorflow(monkeypatch, install, caplog):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    install(tensorflow="2.20.0", tensorflow_cpu="2.21.0")
    hide_gpus()
    assert not caplog.record_tuples
