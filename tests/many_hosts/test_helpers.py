"""Tests that child processes do not join the hosts."""

import sys

import pytest
from helpers import slow

from tests.forking.forks import forking
from tests.many_hosts.launching import launch


@pytest.mark.parametrize(
    "ways", [("spawn", "fork"), slow(("subprocess",))], ids=" ".join
)
def test_children_do_not_join(ways, tmp_path):
    # A fork would lack the files that `multiprocessing` passes to its children.
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
    for result in ended.each("parents"):
        assert result["hosts"] == 2 and result["steps"] == [4]
        # The number of workers comes from the environment.
        for way in ways:
            assert result["helpers"][way] == [2, 1], ended.text
