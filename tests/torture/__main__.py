"""Tortures what is durable at length: `python -m tests.torture`."""

import argparse
import functools
import sys
import tempfile

from tests.torture import damaging
from tests.torture import disks
from tests.torture import hosts
from tests.torture import killing
from tests.torture.figures import table


def main() -> int:
    """Runs all trials; prints their figures.

    Returns:
        0, as a broken promise is an error.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.torture")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--damaged", type=int, default=200)
    parser.add_argument("--host-kills", type=int, default=20)
    numbers = parser.parse_args()
    figures: dict[str, object] = {}
    for trial in (
        functools.partial(damaging.damage, number=numbers.damaged),
        damaging.forge,
        disks.full,
        disks.small_file_system,
        disks.read_only,
        killing.rivals,
        killing.clock_jumps,
        functools.partial(killing.kill_and_resume, kills=numbers.kills),
        hosts.fail_anywhere,
        hosts.start_helpers,
        hosts.read_slowly,
        functools.partial(hosts.kill_and_restart, kills=numbers.host_kills),
    ):
        with tempfile.TemporaryDirectory() as directory:
            figures |= trial(directory)
            print(table(figures), end="\n\n", flush=True, file=sys.stderr)
    print(table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
