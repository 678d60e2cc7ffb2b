"""Trials that interrupt saves between any two file operations."""

import contextlib
import dataclasses
import itertools
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.api.hooks.hook_states import SavedState
from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.base.hosts.agreement import Hosts
from keras_tpu_estimator.checkpoints import SaveFiles, ShardedVariable, ShardValues
from keras_tpu_estimator.engine.inputs.position import (
    Position,
    StepRecipe,
    read_position,
    write_position,
)
from keras_tpu_estimator.files.checkpoints import saving
from keras_tpu_estimator.files.directory import layouts, location, save_files
from keras_tpu_estimator.files.directory.save_files import ResumeFiles
from keras_tpu_estimator.files.formats.hdf5 import reader as hdf5_reader
from keras_tpu_estimator.runs.position_saver import (
    pack_states,
    read_states,
    write_states,
)
from tests.sharded_saves import shard_values, write_shards
from tests.torture import states
from tests.torture.figures import expect
from tests.torture.operations import FATES, KILL, OWN, REMOVING, Killed, Operations

WHOLE, PARTS, TENSORFLOW = "whole", "in parts", "TensorFlow's"
TREE, WHOLE_TREE = "Orbax's in parts", "Orbax's whole"
WAYS = (WHOLE, PARTS, TENSORFLOW)
ALL = (*WAYS, TREE, WHOLE_TREE)
FORMATS = {TENSORFLOW: "tensorflow", TREE: "orbax", WHOLE_TREE: "orbax"}
# The formats that save sharded variables.
SPREAD = (PARTS, TREE)
_HOSTS = 2
_ROWS = 8
_EARLIER, _STEP, _LATER = 10, 20, 30


@dataclasses.dataclass(frozen=True)
class Seam:
    """An interrupted save.

    Attributes:
        way: How it is written, one of `ALL`.
        before: How the same step was saved before, or `None`.
    """

    way: str
    before: str | None

    @property
    def ways(self) -> set[str]:
        """Both ways."""
        return {self.way, self.before or self.way}

    @property
    def start(self) -> dict[int, int]:
        """The values before the save, by step."""
        return {_EARLIER: 0} | ({_STEP: 1} if self.before else {})

    def prepare(self, directory: str) -> None:
        """Makes the directory in its state before the save."""
        save(directory, _EARLIER, 0, self.way)
        if self.before:
            save(directory, _STEP, 1, self.before)


def cut_off(
    directory: str,
    ways: tuple[str, ...] = WAYS,
    fates: tuple[str, ...] = FATES,
    only: Collection[str] | None = None,
) -> dict[str, object]:
    """Interrupts each kind of save at each operation.

    Args:
        directory: An empty directory.
        ways: How saves are written, and how earlier saves were written.
        fates: The kinds of interruption.
        only: The names of operations to interrupt. Defaults to all.

    Returns:
        Counts by their description.

    Raises:
        ViolationError: A checkpoint was lost, or has values or an iterator state of
            another save, or files remain or prevent a restart.
    """
    seams = [Seam(*each) for each in itertools.product(ways, (None, *ways))]
    figures: dict[str, object] = {}
    for fate, seam in itertools.product(fates, seams):
        base = os.path.join(directory, "base")
        seam.prepare(base)
        names = _cut_off(base, seam, 0, fate)
        # Orbax's threads continue here, unlike after a real kill.
        own = OWN if {TREE, WHOLE_TREE} & seam.ways else names
        tried = [
            at
            for at, name in enumerate(names, start=1)
            if name in (own if only is None else only)
        ]
        for at in tried:
            _cut_off(base, seam, at, fate)
        shutil.rmtree(base)
        which = f"over one {seam.before}" if seam.before else "of a new step"
        which = f"operations of a save {seam.way} {which}, {fate}"
        figures[which] = len(tried)
    return figures


def _cut_off(base: str, seam: Seam, at: int, fate: str) -> list[str]:
    """The operations of a save that is interrupted at one of them."""
    directory = base + "-cut"
    shutil.copytree(base, directory)
    operations = Operations(directory, at, fate)
    with contextlib.suppress(Killed, OSError), operations.counted():
        save(directory, _STEP, 2, seam.way)
    what = f"{seam} after {operations.done}, {fate}"
    is_moment = operations.is_met == bool(at)
    by_threads = {TREE, WHOLE_TREE} & seam.ways
    expect(is_moment or bool(by_threads), f"There is such a moment: {what}")
    if not is_moment:
        shutil.rmtree(directory)
        return operations.done
    before, numbers = seam.start[max(seam.start)], {_STEP: 2}
    seen = _check(directory, before, numbers, what)
    is_undone = at and operations.done[at - 1] not in REMOVING
    if fate != KILL and is_undone:
        # At once, because the disk may be full.
        expect_no_stale_files(directory, what)
    save_files.sweep(directory)
    again = _check(directory, seen, numbers, f"{what}, swept")
    expect(seen == again, f"Sweeping must change nothing: {what}")
    expect_no_stale_files(directory, what)
    save(directory, _LATER, 3, seam.way)
    _check(directory, 3, {_LATER: 3}, f"{what}, and another save")
    save(directory, _STEP, 4, seam.way)
    _check(directory, 4, {_STEP: 4}, f"{what}, and the same save")
    expect_no_stale_files(directory, f"{what}, and two saves")
    shutil.rmtree(directory)
    return operations.done


def save(directory: str, step: int, number: int, way: str, rows: int = _ROWS) -> str:
    """Saves a number like `train` on two hosts.

    Args:
        directory: The directory.
        step: The step.
        number: The content of all values and of the iterator state.
        way: How to save, one of `ALL`.
        rows: The size of each value, a multiple of 8. Defaults to 8.

    Returns:
        The prefix.
    """
    os.makedirs(directory, exist_ok=True)
    saved = SaveFiles(os.path.join(directory, f"model.ckpt-{step}"))
    values = {name: np.full((rows,), number, "float32") for name in ("a", "b/c")}
    with saved.tidied_on_failure():
        written, receipts = _written(saved, values, step, way)
        for host in range(_HOSTS):
            position = Position(number, StepRecipe(8, 1, 8))
            write_position(saved, position, Hosts(host, _HOSTS))
        state = SavedState("mine.Counter", 0, {"number": number})
        write_states(saved, pack_states([state]))
        saving.save_into(
            saved,
            step,
            written,
            retention=checkpoints.Retention(2),
            format_name=FORMATS.get(way, "hdf5"),
            receipts=receipts,
        )
    return saved.prefix


def _written(
    saved: SaveFiles, values: dict[str, np.ndarray], step: int, way: str
) -> tuple[Mapping[str, np.ndarray | ShardedVariable], Sequence[Any]]:
    """Writes the hosts' files; returns values for the chief, and receipts."""
    if way == PARTS:
        halves = {name: _spread(value) for name, value in values.items()}
        return write_shards(saved, halves, _HOSTS, step=step)
    if way == TREE:
        shards = {
            name: ShardValues.from_array(states.spread(value))
            for name, value in values.items()
        }
        return write_shards(saved, shards, 1, "orbax", step)
    return values, ()


def _spread(value: np.ndarray) -> ShardValues:
    half, end = len(value) // _HOSTS, len(value)
    halves = {IndexRanges((0,), (half,)): 0, IndexRanges((half,), (end,)): 1}
    return shard_values(value, halves)


def _check(directory: str, before: int, numbers: dict[int, int], what: str) -> int:
    """Checks the latest checkpoint; returns its number.

    Args:
        directory: The directory.
        before: The number of the previous checkpoint.
        numbers: The allowed numbers of new checkpoints, by step.
        what: A description of the interruption.
    """
    latest = checkpoints.latest_intact(directory)
    expect(latest is not None, f"There is a checkpoint: {what}")
    values = checkpoints.read(latest)
    step = int(values.pop("global_step"))
    found = {float(each) for value in values.values() for each in np.unique(value)}
    allowed = {float(before), float(numbers.get(step, before))}
    is_one = len(found) == 1 and found <= allowed
    expect(is_one, f"Values are {allowed}, not {found} of {step}: {what}")
    for host in range(_HOSTS):
        position = read_position(ResumeFiles.at(latest), Hosts(host, _HOSTS))
        is_own = position is not None and {float(position.steps)} == found
        expect(is_own, f"{position} is that of {found}: {what}")
    states = read_states(ResumeFiles.at(latest)) or ()
    numbers_in = [each.state["number"] for each in states]
    expect(numbers_in == [*found], f"{numbers_in} is {found}: {what}")
    return int(found.pop())


def expect_no_stale_files(directory: str, what: str) -> None:
    """Checks that all files of a directory belong to listed checkpoints.

    Args:
        directory: The directory.
        what: A description of the interruption.

    Raises:
        ViolationError: Stale files exist.
    """
    listed = {*location.listed(directory)}
    for prefix in {*_prefixes(directory)}:
        expect(prefix in listed, f"{prefix} is in the list: {what}")
    left = stale_files(directory)
    expect(not left, f"{left} is of no checkpoint: {what}")


def stale_files(directory: str) -> set[str]:
    """The names of files that belong to no checkpoint."""
    known = {"checkpoint", "metrics.jsonl", "run_times.jsonl"}
    for prefix in {*_prefixes(directory)}:
        known |= {os.path.basename(path) for path in _files_of(prefix)}
    names = {name for name in os.listdir(directory) if "tfevents" not in name}
    return names - known


def _prefixes(directory: str) -> Iterator[str]:
    for name in os.listdir(directory):
        prefix, end = os.path.splitext(name)
        if end in (layouts.SUFFIX, layouts.INDEX, layouts.TREE):
            yield os.path.join(directory, prefix)


def _files_of(prefix: str) -> Iterator[str]:
    main = location.main_file(prefix)
    saved = SaveFiles.at(prefix)
    expect(saved is not None, f"{prefix} is of a save.")
    resume_files = ResumeFiles.from_save(saved)
    yield from (*resume_files.positions, *resume_files.callbacks)
    if main.endswith(layouts.INDEX):
        yield from layouts.data_files(prefix)
        yield from (main, prefix + layouts.META)
    elif main.endswith(layouts.TREE):
        yield from (main, saved.named("orbax"))
    else:
        contents = hdf5_reader.contents(prefix)
        yield from (path for each in contents for path in each.files)
