"""Tests that hooks and logs have the steps of TensorFlow 1.15.

`golden/make_told.py` made the golden file with TensorFlow 1.15.5.
"""

import tf1_golden  # isort: skip

import json
import logging

import pytest
from told_program import TRAININGS, told

FINAL = "Loss for final step: "


def golden(name):
    """The events of TensorFlow."""
    return json.loads((tf1_golden.GOLDEN / "told.json").read_text())[name]


@pytest.mark.rows(6)
@pytest.mark.parametrize("name", TRAININGS)
def test_steps_match_the_original(name, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        result = told(name, str(tmp_path))
    messages = [record.getMessage() for record in caplog.records]
    result["final losses"] = [
        round(float(m.removeprefix(FINAL).rstrip(".")), 5)
        for m in messages
        if m.startswith(FINAL)
    ]
    expected = golden(name)
    assert result["checkpoints"] == expected["checkpoints"]
    assert result["counted"] == expected["counted"]
    assert _steps(result["calls"]) == _steps(expected["calls"])
    assert _losses(result["calls"]) == pytest.approx(
        _losses(expected["calls"]), rel=1e-4
    )
    assert result["final losses"] == pytest.approx(expected["final losses"], rel=1e-4)
    if TRAININGS[name][0].__name__ == "of_tpu_estimator":
        return  # The steps of its summaries vary between runs.
    losses = {int(k): v for k, v in expected["losses"].items()}
    assert result["losses"] == pytest.approx(losses, rel=1e-4)


def _steps(calls):
    return [call[:2] for call in calls]


def _losses(calls):
    return [call[2] for call in calls if len(call) > 2]
