"""Compares our shards with Orbax's: `python -m tests.torture formats`."""

import functools
import tempfile
from collections.abc import Callable, Mapping

from tests.forking.forks import forking
from tests.torture import costs, damaging_files, disks, hosts, killing, saves, trainings
from tests.torture.figures import ViolationError

Figures = dict[str, dict[str, object]]
_Trial = Callable[[str], dict[str, object]]

_FEW, _MANY = 16, 2000


def compared(
    kills: int, flips: int, rounds: int, megabytes: int
) -> tuple[Figures, bool]:
    """Runs each trial with each way to save.

    Args:
        kills: The number of killed saves for each way.
        flips: The number of bits to flip in each file.
        rounds: The number of timed saves and reads.
        megabytes: The size of the largest state.

    Returns:
        The measurements by description and way, and whether all guarantees hold.
    """
    figures: Figures = {}
    _add_costs(figures, rounds, megabytes)
    are_kept = True
    for way in (*saves.SPREAD, saves.WHOLE, saves.WHOLE_TREE):
        for trial in _trials(way, kills, flips):
            with (
                forking("package"),
                tempfile.TemporaryDirectory() as directory,
            ):
                try:
                    found = trial(directory)
                except ViolationError as error:
                    found = {f"BROKEN: {str(error).splitlines()[0]}": "yes"}
                    are_kept = False
            for what, figure in found.items():
                figures.setdefault(what, {})[way] = figure
            print(table(figures), end="\n\n", flush=True)
    return figures, are_kept


def _trials(way: str, kills: int, flips: int) -> list[_Trial]:
    kill = functools.partial(killing.kill_in_saves, kills=kills)
    trials: list[Callable[..., dict[str, object]]] = [
        kill,
        disks.full,
        disks.small_file_system,
    ]
    if way in saves.SPREAD:
        trials += [
            functools.partial(damaging_files.damage, flips=flips),
            disks.full_at_each_stage,
            hosts.move,
        ]
    of_way: list[_Trial] = [functools.partial(t, way=way) for t in trials]
    return [
        *of_way,
        functools.partial(_cut_off, saves.cut_off, way=way),
        functools.partial(_cut_off, trainings.cut_off, way=way),
    ]


def _cut_off(
    trial: Callable[..., dict[str, object]], directory: str, way: str
) -> dict[str, object]:
    """Shortens the descriptions of counts to the events."""
    figures: dict[str, object] = {}
    for what, figure in trial(directory, ways=(way,)).items():
        name = what.replace(f" {way}", "")
        figures[name.replace("one, ", "one of the same step, ")] = figure
    return figures


def _add_costs(figures: Figures, rounds: int, megabytes: int) -> None:
    quarter = megabytes // 4
    for size, variables in (
        (quarter, _FEW),
        (megabytes, _FEW),
        (quarter, _MANY),
    ):
        about = f"{size} MB in {variables} variables"
        with tempfile.TemporaryDirectory() as directory:
            asked = costs.Question(directory, None, size, variables, rounds).asked()
        _add(figures, asked, "seconds", about)
        print(table(figures), end="\n\n", flush=True)
    about = f"{megabytes} MB in {_FEW} variables of an accelerator"
    # The others copy by design, so that training continues.
    for way in (*saves.SPREAD, costs.ALONE):
        # Each runs in a separate process, because libraries keep memory.
        with tempfile.TemporaryDirectory() as directory:
            asked = costs.Question(
                directory, way, megabytes, _FEW, 1, is_away=True
            ).asked()
        _add(figures, asked, "MB more while saving", about)


def _add(
    figures: Figures,
    asked: Mapping[str, Mapping[str, float]],
    begin: str,
    about: str,
) -> None:
    for way, measured in asked.items():
        for what, figure in measured.items():
            if what.startswith(begin):
                rounded = f"{figure:.0f}" if "MB" in what else f"{figure:.2f}"
                figures.setdefault(f"{what}, {about}", {})[way] = rounded


def table(figures: Figures) -> str:
    """Formats measurements in columns, one for each way."""
    ways = list(dict.fromkeys(way for row in figures.values() for way in row))
    first = max(map(len, figures))
    rows = [("", ways)] + [
        (what, [str(row.get(way, "-")) for way in ways])
        for what, row in figures.items()
    ]
    return "\n".join(
        what.ljust(first)
        + "".join(
            cell.rjust(2 + max(len(way), 9))
            for way, cell in zip(ways, cells, strict=True)
        )
        for what, cells in rows
    )
