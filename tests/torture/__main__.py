"""Tortures what is durable at length: `python -m tests.torture`.

It also runs the tests that take too long for each run of the suite.
"""

import argparse
import functools
import sys
import tempfile

import jax

from tests.torture import damaging
from tests.torture import disks
from tests.torture import hosts
from tests.torture import killing
from tests.torture import saves
from tests.torture import suite
from tests.torture import trainings
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
    # For variables in parts.
    jax.config.update("jax_num_cpu_devices", 8)
    figures: dict[str, object] = {}
    for trial in (
        functools.partial(damaging.damage, number=numbers.damaged),
        damaging.forge,
        saves.cut_off,
        trainings.cut_off,
        *(
            functools.partial(trial, way=way)
            for trial in (disks.full, disks.small_file_system)
            for way in saves.WAYS
        ),
        disks.read_only,
        killing.rivals,
        killing.clock_jumps,
        functools.partial(killing.kill_and_resume, kills=numbers.kills),
        *(
            functools.partial(
                killing.kill_and_resume, kills=numbers.kills // 5, way=way
            )
            for way in (saves.PARTS, saves.TENSORFLOW)
        ),
        hosts.fail_anywhere,
        hosts.start_helpers,
        hosts.read_slowly,
        functools.partial(hosts.kill_and_restart, kills=numbers.host_kills),
        suite.at_length,
    ):
        with tempfile.TemporaryDirectory() as directory:
            figures |= trial(directory)
            print(table(figures), end="\n\n", flush=True, file=sys.stderr)
    print(table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
