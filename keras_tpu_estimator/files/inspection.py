"""The commands `info` and `verify`, and their output."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import numpy as np

from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.files.directory import location, state_file
from keras_tpu_estimator.files.formats import loading
from keras_tpu_estimator.files.formats import registry as formats
from keras_tpu_estimator.files.summary import run_times
from keras_tpu_estimator.files.summary.event_file import read_scalars
from keras_tpu_estimator.files.summary.run_times import TimeTable


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The prefix, global step and total file size of one checkpoint."""

    prefix: str
    step: int
    num_bytes: int

    @classmethod
    def at(cls, prefix: str, sizes: Mapping[str, int]) -> Self:
        """Returns the checkpoint at a prefix; `sizes` are those of its directory."""
        name = os.path.basename(prefix)
        # Some checkpoints are one file or folder, whose name is the prefix.
        starts = (f"{name}.", f"{name}/")
        own_sizes = [
            n for path, n in sizes.items() if path == name or path.startswith(starts)
        ]
        return cls(prefix, loading.step_of(prefix), sum(own_sizes))


@dataclasses.dataclass(frozen=True)
class Directory:
    """The files that training has written into a directory.

    The newest checkpoint is the first, and has the variables. `results` are the last
    scalars of the event files by folder, which is "" for training. `times` is `None` if
    no run has recorded its time.
    """

    path: str
    checkpoints: tuple[Checkpoint, ...]
    variables: Mapping[str, tuple[tuple[int, ...], np.dtype]]
    results: Mapping[str, Mapping[str, float]]
    is_complete: bool
    times: TimeTable | None = None

    @classmethod
    def at(cls, path: str) -> Self:
        """Reads a directory or one checkpoint; raises `ValueError` if none exists."""
        prefixes = prefixes_of(path)
        newest = prefixes[0]
        directory = os.path.dirname(newest)
        sizes = paths.sizes_in(directory or os.curdir)
        reader = loading.load_checkpoint(newest)
        dtypes = reader.get_variable_to_dtype_map()
        runs = run_times.read(directory)
        return cls(
            directory,
            tuple(Checkpoint.at(prefix, sizes) for prefix in prefixes),
            {
                name: (tuple(shape), np.dtype(dtypes[name]))
                for name, shape in sorted(reader.get_variable_to_shape_map().items())
            },
            _results(directory, sizes),
            state_file.training_is_complete(directory),
            TimeTable.from_runs(runs) if runs else None,
        )

    @property
    def num_parameters(self) -> int:
        """The number of values in all variables of the newest checkpoint."""
        return sum(
            int(np.prod(shape, dtype=np.int64)) for shape, _ in self.variables.values()
        )


def prefixes_of(path: str) -> list[str]:
    """Returns the checkpoints at a path, newest first, of which one must exist."""
    newest = location.resolve(path)
    if not paths.is_directory(path):
        return [newest]
    listed = location.listed(os.path.dirname(newest))
    return [*filter(location.exists, listed)]


def _results(directory: str, names: Iterable[str]) -> dict[str, Mapping[str, float]]:
    """Returns the last scalars in each folder's event files, of all file names."""
    files: dict[str, list[str]] = {}
    for name in names:
        if ".tfevents." in os.path.basename(name):
            path = os.path.join(directory, name)
            files.setdefault(os.path.dirname(name), []).append(path)
    steps = {folder: read_scalars(event_files) for folder, event_files in files.items()}
    return {
        folder: {"step": last, **scalars[last]}
        for folder, scalars in steps.items()
        if (last := max(scalars, default=None)) is not None
    }


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of verifying a checkpoint; without a problem it is intact."""

    prefix: str
    problem: str | None = None
    is_gone: bool = False

    @property
    def is_intact(self) -> bool:
        """Whether there is no problem."""
        return self.problem is None


def verify_all(path: str) -> list[Verdict]:
    """Verifies all expected checkpoints of a path, newest first."""
    verdicts = [*map(verify, _expected_at(path))]
    if all(verdict.is_intact for verdict in verdicts):
        return verdicts
    # Training may have removed a checkpoint meanwhile.
    expected = _expected_at(path)
    return [v for v in verdicts if v.is_intact or v.prefix in expected]


def _expected_at(path: str) -> list[str]:
    """Returns the checkpoints that must exist at a path."""
    if paths.is_directory(path) and not location.exists(path):
        if listed := location.listed(path):
            return listed
    return [location.resolve(path)]


def verify(prefix: str) -> Verdict:
    """Verifies a checkpoint by reading all of it."""
    if not location.exists(prefix):
        return Verdict(prefix, "the `checkpoint` file lists it", is_gone=True)
    try:
        reader = loading.load_checkpoint(prefix)
        with reader.held_open():
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
    except (ValueError, OSError) as error:
        return Verdict(prefix, str(error))
    if not formats.is_intact(prefix):
        return Verdict(prefix, "it has changed since it was written")
    return Verdict(prefix)


_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def as_text(directory: Directory) -> str:
    """Formats checkpoints, variables and results as tables."""
    newest = directory.checkpoints[0]
    ended = "complete" if directory.is_complete else "not marked as complete"
    parts = [
        f"{directory.path}: at step {newest.step}; training is {ended}",
        _table(
            ("checkpoint", "step", "size"),
            [
                (
                    os.path.basename(checkpoint.prefix),
                    str(checkpoint.step),
                    _size(checkpoint.num_bytes),
                )
                for checkpoint in directory.checkpoints
            ],
        ),
        _table(
            ("variable", "shape", "dtype"),
            [
                (name, str(shape), dtype.name)
                for name, (shape, dtype) in directory.variables.items()
            ],
        ),
        f"{len(directory.variables)} variables, {directory.num_parameters:,} numbers",
    ]
    if directory.results:
        rows = [
            (
                folder or "training",
                ", ".join(
                    f"{name} = {value:.6g}"
                    for name, value in last.items()
                    # A separate table has them.
                    if not name.startswith(run_times.PREFIX)
                ),
            )
            for folder, last in directory.results.items()
        ]
        parts.append(_table(("last results of", ""), rows))
    if directory.times is not None:
        parts += _times(directory.times)
    return "\n\n".join(parts)


def _times(times: TimeTable) -> list[str]:
    """Formats the times of all runs as a table and a sentence."""
    rows = [
        (name.replace("_", " "), f"{secs:.2f}", _share(secs, times.total))
        for name, secs in (*times.seconds.items(), ("total", times.total))
    ]
    count = f"{times.runs} run{'' if times.runs == 1 else 's'}"
    return [
        _table(("time", "seconds", "share"), rows),
        f"{count}, goodput {_share(times.goodput)}, {times.saving:.2f} s of saving in "
        "the background",
    ]


def _share(part: float, total: float = 1.0) -> str:
    return f"{part / total:.1%}" if total else "0.0%"


def verdicts_as_text(verdicts: Iterable[Verdict]) -> str:
    """Formats the results of `verify`, one line for each checkpoint."""
    return "\n".join(map(_line, verdicts))


def _line(verdict: Verdict) -> str:
    if verdict.is_intact:
        return f"intact   {verdict.prefix}"
    heading = "MISSING" if verdict.is_gone else "CORRUPT"
    return f"{heading}  {verdict.prefix}: {verdict.problem}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _size(num_bytes: float) -> str:
    """Formats a number of bytes in a suitable unit."""
    for unit in _UNITS[:-1]:
        if num_bytes < 1000:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.4g} {_UNITS[-1]}"


def main(name: str, arguments: Sequence[str]) -> int:
    """Runs a command; returns 1 if a checkpoint is corrupt or missing, otherwise 0."""
    parser = argparse.ArgumentParser(
        f"python -m keras_tpu_estimator {name}",
        description="Shows the checkpoints of a directory, the variables of "
        "the latest one and the last results."
        if name == "info"
        else "Reads all of each checkpoint. The exit status is 1 if one is "
        "corrupt, or listed in the `checkpoint` file but missing.",
    )
    parser.add_argument(
        "path",
        metavar="PATH",
        help="a model_dir, or a checkpoint, such as run/model.ckpt-20",
    )
    options = parser.parse_args(arguments)
    # TensorFlow, which reads its own checkpoints, would otherwise log messages.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        if name == "info":
            sys.stdout.write(as_text(Directory.at(options.path)) + "\n")
            return 0
        verdicts = verify_all(options.path)
    except (ValueError, ImportError) as error:
        parser.error(str(error))
    sys.stdout.write(verdicts_as_text(verdicts) + "\n")
    return 0 if all(verdict.is_intact for verdict in verdicts) else 1
