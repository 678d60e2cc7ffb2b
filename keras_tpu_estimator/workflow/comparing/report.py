"""The result of a comparison, as an object, a text and JSON."""

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

from keras_tpu_estimator.workflow.comparing.findings import Compared, Finding
from keras_tpu_estimator.workflow.comparing.pairing import Pairing


@dataclasses.dataclass(frozen=True)
class ComparisonReport:
    """The result of `kte.compare`.

    Attributes:
        steps: The number of steps that both programs trained.
        compared: Everything that was compared, up to the first difference.
        finding: The first difference, or `None` if the programs are one.
        pairing: The variables of both programs.
        notes: What the reader should know, one sentence each.
        dropout: The rates of the dropouts that were left out of the old and of the new
            program; `None` for rates that are tensors.
    """

    steps: int
    compared: tuple[Compared, ...]
    finding: Finding | None
    pairing: Pairing | None
    notes: tuple[str, ...]
    dropout: tuple[tuple[float | None, ...], ...] = ((), ())

    @property
    def is_equal(self) -> bool:
        """Whether no difference was found."""
        return self.finding is None

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.pairing is not None:
            guesses = self.pairing.guesses
            yield (
                f"{self.steps} steps; {len(self.pairing.pairs)} pairs of variables, "
                f"of which {len(guesses)} by shape and order."
            )
            for pair in guesses:
                yield f"  {pair.old} -> {pair.new}"
            for name, paths in (
                ("old", self.pairing.only_old),
                ("new", self.pairing.only_new),
            ):
                if paths:
                    yield f"Only in the {name} program: {', '.join(paths)}"
        for name, rates in zip(("old", "new"), self.dropout, strict=True):
            if rates:
                shown = ("a tensor" if rate is None else f"{rate:g}" for rate in rates)
                yield f"Dropout of the {name} program, left out: {', '.join(shown)}."
        yield from self._table()
        yield from self.notes
        if self.finding is None:
            yield "The programs are one, up to rounding."
            return
        first = self.finding.compared
        step = "" if first.step is None else f"step {first.step}, "
        name = f" `{first.name}`" if first.name else ""
        yield (
            f"First difference: {step}{first.kind}{name}, by "
            f"{first.difference.relative:.2g} (rounding "
            f"{first.difference.explained:.1g}). {self.finding.explanation}"
        )

    def _table(self) -> Iterator[str]:
        kinds = list(dict.fromkeys(one.kind for one in self.compared))
        if not kinds:
            return
        width = max(map(len, kinds)) + 2
        yield f"{'compared':{width}}{'values':>8}{'largest':>12}{'rounding':>12}"
        for kind in kinds:
            ones = [one for one in self.compared if one.kind == kind]
            worst = max(ones, key=lambda one: one.difference.relative)
            yield (
                f"{kind:{width}}{len(ones):>8}{worst.difference.relative:>12.1e}"
                f"{worst.difference.explained:>12.1e}  {worst.name}"
            )

    def as_json(self) -> str:
        """Returns the report as a JSON object; infinite differences are null."""
        described: dict[str, Any] = dataclasses.asdict(self)
        described["is_equal"] = self.is_equal
        return json.dumps(_finite(described), default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    """Returns a tree of values with `None` for numbers that JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(member) for member in value]
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    return None if is_infinite else value
