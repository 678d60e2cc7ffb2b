"""Tests what readers of a notebook see, with nbconvert."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.many_hosts.launching import with_cores

HERE = pathlib.Path(__file__).parent
for package in ("nbconvert", "ipykernel"):
    pytest.importorskip(package, reason=f"{package} is not installed")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The outputs of each cell."""
    directory = tmp_path_factory.mktemp("notebook")
    subprocess.run(
        [
            *(sys.executable, "-m", "nbconvert", "--execute"),
            *("--to", "notebook", "--output-dir", str(directory)),
            str(HERE / "training.ipynb"),
        ],
        env={
            **os.environ,
            # The kernel uses this checkout and one device.
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "XLA_FLAGS": with_cores(1),
            "JUPYTER_PLATFORM_DIRS": "1",
            "IPYTHONDIR": str(directory),
        },
        check=True,
        capture_output=True,
        timeout=300,
    )
    notebook = json.loads((directory / "training.ipynb").read_text())
    return [cell["outputs"] for cell in notebook["cells"]]


def texts(outputs, *kinds):
    """The texts of several kinds of outputs."""
    return [
        "".join(each.get("text") or each["data"]["text/plain"])
        for each in outputs
        if each["output_type"] in kinds
    ]


def test_estimator_is_shown_as_a_table_in_a_notebook(outputs):
    _, shown, *_ = outputs
    (result,) = [each for each in shown if each["output_type"] == "execute_result"]
    rows = re.findall(
        "<th[^>]*>(.*?)</th><td[^>]*>(.*?)</td>",
        "".join(result["data"]["text/html"]),
    )
    told = dict(rows)
    assert told["train_batch_size"] == "16"
    assert told["checkpoint"] == "none"
    assert told["config"] == "iterations_per_loop=100"
    assert "".join(result["data"]["text/plain"]).startswith("TPUEstimator\n")


def test_training_has_one_display(outputs):
    trained = outputs[2]
    (line,) = texts(trained, "display_data")
    assert re.fullmatch(
        r"step 3000 of 3000, loss \S+, [\d,.]+ steps/s, [\d,.]+ examples/s, "
        r"[\d:.]+( s)? in total",
        line,
    )
    assert "<progress" in json.dumps(trained)
    assert "\\b" not in json.dumps(trained)


def test_log_is_short(outputs):
    lines = "".join(texts(outputs[2], "stream")).splitlines()
    reports = [line for line in lines if "loss = " in line]
    # Thirty loops take a second or two.
    assert 0 < len(reports) < 15
    assert "step = 3000" in reports[-1]
    assert all("examples/sec = " in report for report in reports)


def test_copies_have_the_trained_weights(outputs):
    (result,) = texts(outputs[3], "execute_result")
    assert result.count("3000") == 2


def test_other_model_is_refused(outputs):
    told = "".join(texts(outputs[4], "stream"))
    assert "'inner/" in told and "in the checkpoint" in told
