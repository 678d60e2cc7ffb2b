"""Tests the command line of the package itself."""

import os
import subprocess
import sys

import pytest

import keras_tpu_estimator as kte
from keras_tpu_estimator.__main__ import main


def ended(*arguments):
    """Runs a command where Keras cannot be imported on JAX; returns its end."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--help"], 0, "Each command has its own --help."),
        (["-h"], 0, "reads each checkpoint completely"),
        (["--version"], 0, f"keras_tpu_estimator {kte.__version__}\n"),
        ([], 2, "COMMAND"),
        (["plam"], 2, "'plam'"),
    ],
)
def test_answers_without_importing_keras(arguments, status, text, capsys):
    process = ended("-m", "keras_tpu_estimator", *arguments)
    assert process.returncode == status
    assert text in process.stdout + process.stderr
    assert not status or process.stderr.startswith("usage: ")
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == status
    assert text in "".join(capsys.readouterr())


def test_options_of_other_programs_are_theirs(tmp_path):
    (tmp_path / "tool.py").write_text("import keras_tpu_estimator")
    for program in (["-m", "tool"], [str(tmp_path / "tool.py")]):
        process = subprocess.run(
            [sys.executable, *program, "--version"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert not process.stdout
