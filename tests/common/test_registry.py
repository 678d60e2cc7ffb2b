"""Tests of parts that are found by name."""

import sys

import pytest

from keras_tpu_estimator.base.common import registry


@pytest.fixture(autouse=True)
def offered(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "_addresses", {})
    monkeypatch.setattr(registry, "_found", {})
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "made_part.py").write_text("answer = 42\n")
    (tmp_path / "broken_part.py").write_text("import no_such_library\n")
    registry.offer(
        {
            "module": "made_part",
            "attribute": "made_part:answer",
            "missing": "no_such_room.part",
            "broken": "broken_part",
        }
    )
    yield
    sys.modules.pop("made_part", None)


def test_parts_are_imported_when_they_are_found():
    assert "made_part" not in sys.modules
    assert registry.part("attribute") == 42
    assert registry.part("module") is sys.modules["made_part"]


@pytest.mark.parametrize("name", ["missing", "never offered"])
def test_missing_parts_are_none_or_an_error(name):
    assert registry.find(name) is None
    with pytest.raises(registry.MissingPartError, match=f"The part '{name}'"):
        registry.part(name)


def test_errors_inside_a_part_are_raised():
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        registry.find("broken")


def test_part_can_be_replaced():
    assert registry.part("attribute") == 42
    registry.offer({"attribute": "made_part"})
    assert registry.part("attribute") is sys.modules["made_part"]
