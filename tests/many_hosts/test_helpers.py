"""Processes that hosts start to help them are none of the hosts."""

import sys

import pytest
from helpers import slow

from tests.forking.forks import forking
from tests.many_hosts.launching import launch


@pytest.mark.parametrize(
    "ways", [("spawn", "fork"), slow(("subprocess",))], ids=" ".join
)
def test_helpers_are_alone(ways, tmp_path):
    # A fork would not have what `multiprocessing` gives to what it starts.
    python = sys.executable
    with forking("package"):
        ended = launch(
            "-m",
            "tests.many_hosts.parent_program",
            str(tmp_path),
            python,
            *ways,
            cores=1,
        )
    assert ended.code == 0, ended.text
    for said in ended.each("parents"):
        assert said["hosts"] == 2 and said["steps"] == [4]
        # A configuration says what the environment does.
        for way in ways:
            assert said["helpers"][way] == [2, 1], ended.text
