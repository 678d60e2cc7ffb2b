"""The table of a search, and the options of its best candidate."""

import dataclasses
from collections.abc import Iterator

from keras_tpu_estimator.api.config.tpu_config import TPUConfig
from keras_tpu_estimator.planning.memory import shown_bytes
from keras_tpu_estimator.planning.plans import Plan
from keras_tpu_estimator.planning.search import SearchResult, Trial, shown_options

_HEAD = ("topology", "options", "memory", "examples/s, at best", "cycles", "sent")
_TPU_FIELDS = {field.name for field in dataclasses.fields(TPUConfig)}


def as_text(result: SearchResult) -> str:
    """Returns the candidates that no other one dominates, and the best `RunConfig`."""
    rows = [_HEAD, *_rows(result)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["   ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, *_remarks(result)])


def _rows(result: SearchResult) -> Iterator[tuple[str, ...]]:
    front = result.front
    for trial in front:
        yield _row(trial)
    for trial in result.as_written:
        if trial not in front:
            yield _row(trial)


def _row(trial: Trial) -> tuple[str, ...]:
    name, options = trial.candidate.topology.name, shown_options(trial.candidate)
    plan = trial.result
    if not isinstance(plan, Plan):
        return name, options, "does not fit or compile", "", "", ""
    cost = plan.cost
    share = "" if cost.memory.share is None else f" ({cost.memory.share:.0%})"
    peak = "not known" if cost.memory.peak is None else shown_bytes(cost.memory.peak)
    speed = f"{trial.speed:,.0f}" if trial.speed else "not known"
    cycles = "not known" if cost.cycles is None else f"{cost.cycles:,.0f}"
    return name, options, peak + share, speed, cycles, shown_bytes(cost.sent)


def _remarks(result: SearchResult) -> Iterator[str]:
    if result.untried:
        yield (
            f"\nThe time did not suffice for {result.untried} of the candidates. "
            "Increase --budget to compile them."
        )
    best = result.best
    if best is None:
        yield "\nNone of the candidates fits."
    elif best in result.as_written:
        yield f"\nThe script's own options are the best, on {_name(best)}."
    else:
        yield f"\nThe best, on {_name(best)}: {config_text(best)}"


def _name(trial: Trial) -> str:
    return trial.candidate.topology.name


def config_text(trial: Trial) -> str:
    """Returns the options of a candidate as the code of a `RunConfig`."""
    options = dict(trial.candidate.options)
    tpu = {name: value for name, value in options.items() if name in _TPU_FIELDS}
    fields = [f"{name}={value!r}" for name, value in options.items() if name not in tpu]
    if tpu:
        inner = ", ".join(f"{name}={value!r}" for name, value in tpu.items())
        fields.append(f"tpu_config=kte.TPUConfig({inner})")
    text = f"kte.RunConfig({', '.join(fields)})"
    factor = trial.candidate.batch_factor
    return text if factor == 1 else f"{text}, with {factor} times the batch"
