"""Long tests of files, signals and hosts: `python -m tests.torture`.

It also runs the slow tests, which are too long for each run of the suite.
`python -m tests.torture formats` compares our own shards with Orbax's.
"""

import argparse
import functools
import sys
import tempfile
from collections.abc import Callable, Iterator

import jax

from tests.torture import (
    damaging,
    damaging_files,
    disks,
    formats,
    hosts,
    killing,
    restarts,
    saves,
    suite,
    supervised,
    trainings,
    users,
)
from tests.torture.figures import table

_Trial = Callable[[str], dict[str, object]]


def main() -> int:
    """Runs all trials and prints their measurements.

    Returns:
        0, because a violation raises an error.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.torture")
    parser.add_argument("what", nargs="?", choices=("all", "formats"))
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--damaged", type=int, default=200)
    parser.add_argument("--host-kills", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=1024)
    numbers = parser.parse_args()
    # These trials are for sharded variables.
    jax.config.update("jax_num_cpu_devices", 8)
    if numbers.what == "formats":
        compared, are_kept = formats.compared(
            numbers.kills,
            numbers.damaged // 10,
            numbers.rounds,
            numbers.megabytes,
        )
        print(formats.table(compared))
        return 0 if are_kept else 1
    figures: dict[str, object] = {}
    for way, trial in _trials(numbers):
        with tempfile.TemporaryDirectory() as directory:
            found = trial(directory)
        figures |= {f"{what}{way}": figure for what, figure in found.items()}
        print(table(figures), end="\n\n", flush=True, file=sys.stderr)
    print(table(figures))
    return 0


def _trials(numbers: argparse.Namespace) -> Iterator[tuple[str, _Trial]]:
    """The trials to run, and the labels of their results."""
    yield "", functools.partial(damaging.damage, number=numbers.damaged)
    yield "", damaging.forge
    yield "", functools.partial(saves.cut_off, ways=saves.ALL)
    yield "", functools.partial(trainings.cut_off, ways=saves.ALL)
    yield "", users.link
    yield "", users.look_on_threads
    yield "", users.edit_at_saves
    for trial in (disks.full, disks.small_file_system):
        for way in saves.ALL:
            yield f", {way}", functools.partial(trial, way=way)
    for way in saves.SPREAD:
        yield f", {way}", functools.partial(disks.full_at_each_stage, way=way)
        yield (
            f", {way}",
            functools.partial(
                damaging_files.damage, flips=numbers.damaged // 20, way=way
            ),
        )
    yield "", disks.read_only
    yield "", killing.rivals
    yield "", killing.clock_jumps
    yield "", functools.partial(killing.kill_and_resume, kills=numbers.kills)
    for way in saves.ALL:
        yield (
            f", {way}",
            functools.partial(killing.kill_in_saves, kills=numbers.kills // 5, way=way),
        )
    yield "", hosts.fail_anywhere
    yield "", hosts.start_helpers
    yield "", hosts.read_slowly
    for way in saves.SPREAD:
        yield f", {way}", functools.partial(hosts.move, way=way)
    yield (
        "",
        functools.partial(hosts.kill_and_restart, kills=numbers.host_kills),
    )
    yield "", functools.partial(restarts.interrupt, jobs=numbers.jobs)
    yield (
        ", supervised",
        functools.partial(
            restarts.interrupt,
            jobs=numbers.jobs,
            causes=(*restarts.CAUSES, *supervised.CAUSES),
            run=supervised.run,
        ),
    )
    yield "", functools.partial(restarts.shrink, jobs=numbers.jobs // 10)
    yield "", suite.slow


if __name__ == "__main__":
    sys.exit(main())
