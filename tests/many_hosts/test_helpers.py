"""Processes that hosts start to help them are none of the hosts."""

import sys

from tests.forking.forks import forking
from tests.many_hosts.launching import launch


def test_helpers_are_alone(tmp_path):
    # A fork would not have what `multiprocessing` gives to what it starts.
    python = sys.executable
    ways = ("spawn", "subprocess", "fork")
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
