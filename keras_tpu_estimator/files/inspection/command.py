"""The commands `info` and `verify`, and their output."""

import argparse
import os
import sys
from collections.abc import Iterable, Sequence

from keras_tpu_estimator.files.inspection.directories import (
    Directory,
    Verdict,
    verify_all,
)

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
                    os.path.basename(each.prefix),
                    str(each.step),
                    _size(each.num_bytes),
                )
                for each in directory.checkpoints
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
                ", ".join(f"{name} = {value:.6g}" for name, value in last.items()),
            )
            for folder, last in directory.results.items()
        ]
        parts.append(_table(("last results of", ""), rows))
    return "\n\n".join(parts)


def verdicts_as_text(verdicts: Iterable[Verdict]) -> str:
    """Formats the results of `verify`, one line for each checkpoint.

    Example:

    >>> print(verdicts_as_text([Verdict("run/model.ckpt-20")]))
    intact   run/model.ckpt-20
    """
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
    """Runs a command.

    Returns:
        0; 1 if a checkpoint is corrupt, or listed but missing; 2 if none
        exists.
    """
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
            sys.stdout.write(as_text(Directory.of(options.path)) + "\n")
            return 0
        verdicts = verify_all(options.path)
    except ValueError as error:
        parser.error(str(error))
    sys.stdout.write(verdicts_as_text(verdicts) + "\n")
    return 0 if all(verdict.is_intact for verdict in verdicts) else 1
