"""The table of programs that the TPU compiler accepts, as on the pages."""

import collections
import dataclasses
import functools
import pathlib
import re

STORED = pathlib.Path(__file__).parents[2] / "docs/outputs/tpu_compiled.md"
STALE = (
    f"{STORED.name} says something else of it. Expected what tests have found: "
    "run `python -m tests.tpu.make_table`."
)
PROPERTY = "tpu_compiled"
COMPILES = "compiles"
# The table has all programs on each of these topologies, and some on others.
TOPOLOGIES = ("v5e:2x2", "v5e:4x4", "v4:2x2x1", "v6e:2x2")
# These topologies need a compiler that tests do not require; they are not in the table.
GPUS = ("h100:1x4",)
_MODES = ("train", "eval", "infer")
_CELL = re.compile(r"(train|eval|infer)( \[(\d+)\])?")


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of one call.

    Attributes:
        group: The kind of program, such as "layers".
        name: The name of the program.
        topology: The topology for which it is compiled.
        mode: A value of `ModeKeys`.
        found: "compiles", or the reason why not.
    """

    group: str
    name: str
    topology: str
    mode: str
    found: str

    @property
    def key(self):
        """The group, name, topology and mode."""
        return self.group, self.name, self.topology, self.mode


def refused(error):
    """The result for a program that does not compile."""
    # The first sentence of the error, without a source line.
    text = re.split(r"\.\s|\.$| at \S+:\d", str(error))[0]
    return f"{type(error).__name__}: {text}."


@functools.cache
def stored():
    """The cells of the table, by group, name, topology and mode."""
    if not STORED.exists():
        return {}
    return {row.key: row.found for row in read(STORED.read_text())}


def read(text):
    """The rows of a table, in their order."""
    notes = dict(re.findall(r"(?m)^(\d+)\. (.+)$", text))
    group, topologies = "", ()
    for line in text.splitlines():
        if not line.startswith("| ") or line.startswith("| ---"):
            continue
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if not first.startswith("`"):
            group, topologies = first.replace(" ", "_"), cells
            continue
        for topology, cell in zip(topologies, cells, strict=True):
            for mode, _, note in _CELL.findall(cell):
                found = notes[note] if note else COMPILES
                yield Row(group, first.strip("`"), topology, mode, found)


def written(rows):
    """The table of rows.

    There is one for each group. A call that does not compile has the number
    of a note.
    """
    rows = list(rows)
    notes = list(dict.fromkeys(r.found for r in rows if r.found != COMPILES))
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    parts = [_of_group(group, groups[group], notes) for group in sorted(groups)]
    listed = [f"{n}. {note}" for n, note in enumerate(notes, 1)]
    return "\n\n".join(parts + ["\n".join(listed)] * bool(listed)) + "\n"


def _of_group(group, rows, notes):
    topologies = list(dict.fromkeys([*TOPOLOGIES, *(r.topology for r in rows)]))
    found = {(r.name, r.topology, r.mode): r.found for r in rows}

    def cell(name, topology):
        modes = (mode for mode in _MODES if (name, topology, mode) in found)
        return ", ".join(
            mode
            if (said := found[name, topology, mode]) == COMPILES
            else f"{mode} [{1 + notes.index(said)}]"
            for mode in modes
        )

    lines = [
        [group.replace("_", " "), *topologies],
        ["---"] * -~len(topologies),
    ]
    for name in dict.fromkeys(row.name for row in rows):
        lines.append([f"`{name}`", *(cell(name, each) for each in topologies)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
