"""The text of a model's `summary`: its variables by scope."""

import math
from collections.abc import Iterable, Sequence

import jax.numpy as jnp
import keras

from keras_tpu_estimator.base.tracing.variables import is_accumulator


def summary_text(
    name: str,
    variables: Iterable[keras.Variable],
    slots: Sequence[keras.Variable] = (),
    show_trainable: bool = False,
) -> str:
    """Returns a table of variables and their layers."""
    variables = [v for v in variables if not is_accumulator(v)]
    rows = [("Layer, variable", "Shape", "Param #", "Trainable")]
    for scope, members in _by_scope(variables).items():
        if scope:
            rows.append((scope, "", f"{_count(members):,}", ""))
        for variable in members:
            own = variable.path.removeprefix(f"{scope}/")
            indent = "  " if scope else ""
            trained = "Y" if variable.trainable else "N"
            shape = str(tuple(variable.shape))
            rows.append((f"{indent}{own}", shape, f"{_count([variable]):,}", trained))
    lines = _aligned(rows, 4 if show_trainable else 3)
    rule = "─" * max(map(len, lines))
    trainable = [v for v in variables if v.trainable]
    others = [v for v in variables if not v.trainable]
    totals = [
        ("Total", [*variables, *slots]),
        ("Trainable", trainable),
        ("Non-trainable", others),
        ("Optimizer", slots),
    ]
    return "\n".join(
        [
            f'Model: "{name}"',
            rule,
            lines[0],
            rule,
            *lines[1:],
            rule,
            *(f" {kind} params: {_count(of):,} ({_size(of)})" for kind, of in totals),
        ]
    )


def _by_scope(
    variables: Iterable[keras.Variable],
) -> dict[str, list[keras.Variable]]:
    """Groups variables by scope, in the order of creation."""
    scopes: dict[str, list[keras.Variable]] = {}
    for variable in variables:
        scope = variable.path.rpartition("/")[0]
        scopes.setdefault(scope, []).append(variable)
    return scopes


def _aligned(rows: Iterable[tuple[str, ...]], columns: int) -> list[str]:
    cells = [row[:columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            # Numbers are aligned at the right.
            cell.rjust(width) if number == 2 else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _count(variables: Iterable[keras.Variable]) -> int:
    return sum(math.prod(v.shape) for v in variables)


def _size(variables: Iterable[keras.Variable]) -> str:
    size = float(
        sum(math.prod(v.shape) * jnp.dtype(v.dtype).itemsize for v in variables)
    )
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TB"
