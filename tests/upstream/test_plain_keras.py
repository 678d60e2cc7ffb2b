"""Plain Keras is Keras, before and after this package runs, and beside it.

Each phase runs in one process: after the import, after `train`, `evaluate`, `predict`
and an export, after `from_keras`, and on another thread while training runs.
"""

import json
import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).with_name("plain_keras_program.py")
PHASES = (
    "imported",
    "trained",
    "beside",
    "exported",
    "from_keras",
)


@pytest.fixture(scope="module")
def phases(tmp_path_factory):
    """The behaviours and changed functions of each phase, by its name."""
    folder = tmp_path_factory.mktemp("plain")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("phase", PHASES)
def test_keras_behaves_as_before_the_import(phases, phase):
    expected, found = phases["before"]["behaviours"], phases[phase]["behaviours"]
    assert len(expected) > 15
    assert found == expected


@pytest.mark.parametrize("phase", sorted({*PHASES} - {"beside"}))
def test_functions_and_classes_of_keras_are_its_own(phases, phase):
    assert phases[phase]["changed"] == []
