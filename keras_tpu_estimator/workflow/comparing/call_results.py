"""The first difference of what `evaluate` and `predict` return in two programs."""

from collections.abc import Mapping
from typing import Any

from keras_tpu_estimator.workflow.comparing.findings import (
    Compared,
    Comparison,
    Finding,
    of_values,
)
from keras_tpu_estimator.workflow.comparing.records import (
    EvaluationRecord,
    ExportRecord,
    PredictionRecord,
)
from keras_tpu_estimator.workflow.comparing.rounding import Difference


def of_evaluations(
    old: EvaluationRecord,
    new: EvaluationRecord,
    again: EvaluationRecord,
    tolerance: float,
) -> Comparison:
    """Compares the metrics of two evaluations."""
    return _of_named("metric", old.metrics, new.metrics, again.metrics, tolerance)


def of_predictions(
    old: PredictionRecord,
    new: PredictionRecord,
    again: PredictionRecord,
    tolerance: float,
) -> Comparison:
    """Compares the predictions of two programs by key."""
    values = old.predictions, new.predictions, again.predictions
    return _of_named("prediction", *values, tolerance)


def of_exports(old: ExportRecord, new: ExportRecord) -> Comparison:
    """Compares the names, dtypes and shapes of exported signatures."""
    values = old.signatures, new.signatures, old.signatures
    return _of_named("exported signature", *values, 0.0)


def _of_named(
    kind: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    again: Mapping[str, Any],
    tolerance: float,
) -> Comparison:
    compared = []
    for name in sorted(old.keys() & new.keys()):
        one = Compared(kind, name, None, of_values(old[name], new[name], again[name]))
        compared.append(one)
        if one.difference.exceeds(tolerance):
            reason = (
                f"All losses and variables are equal: compare how {kind}s are made."
            )
            return Comparison(tuple(compared), Finding(one, reason))
    missing = sorted(old.keys() - new)
    if missing:
        one = Compared(kind, missing[0], None, Difference(float("inf")))
        return Comparison((*compared, one), Finding(one, "The new program lacks it."))
    notes = [
        f"Only the new program has the {kind} `{name}`."
        for name in sorted(new.keys() - old)
    ]
    return Comparison(tuple(compared), None, tuple(notes))
