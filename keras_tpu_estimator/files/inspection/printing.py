"""What there is in a directory, as text."""

import os
from collections.abc import Iterable
from collections.abc import Sequence

from keras_tpu_estimator.files.inspection.directories import Directory
from keras_tpu_estimator.files.inspection.verifying import Verdict

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def as_text(directory: Directory) -> str:
    """Checkpoints, variables and results, as tables."""
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
        f"{len(directory.variables)} variables, "
        f"{directory.num_parameters:,} numbers",
    ]
    if directory.results:
        rows = [
            (
                folder or "training",
                ", ".join(
                    f"{name} = {value:.6g}" for name, value in last.items()
                ),
            )
            for folder, last in directory.results.items()
        ]
        parts.append(_table(("last results of", ""), rows))
    return "\n\n".join(parts)


def verdicts_as_text(verdicts: Iterable[Verdict]) -> str:
    """A line for each checkpoint.

    Args:
        verdicts: What reading them has shown.

    Example:

    >>> print(verdicts_as_text([Verdict("run/model.ckpt-20")]))
    intact   run/model.ckpt-20
    """
    return "\n".join(map(_line, verdicts))


def _line(verdict: Verdict) -> str:
    if verdict.is_intact:
        return f"intact   {verdict.prefix}"
    heading = "GONE   " if verdict.is_gone else "DAMAGED"
    return f"{heading}  {verdict.prefix}: {verdict.problem}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines
    )


def _size(num_bytes: float) -> str:
    """A number of bytes in a unit that suits it."""
    for unit in _UNITS[:-1]:
        if num_bytes < 1000:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.4g} {_UNITS[-1]}"
