"""`kte.compare`: whether two programs are one."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from keras_tpu_estimator.api.config.run_config import RunConfig
from keras_tpu_estimator.base.common import registry
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import InputFn, PathLike
from keras_tpu_estimator.estimator.tpu_estimator import TPUEstimator
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.workflow.comparing import call_results
from keras_tpu_estimator.workflow.comparing.differences import TrainingComparison
from keras_tpu_estimator.workflow.comparing.findings import Comparison
from keras_tpu_estimator.workflow.comparing.pairing import Pairing
from keras_tpu_estimator.workflow.comparing.programs import (
    NewProgram,
    OldProgram,
    can_run,
    values_of,
)
from keras_tpu_estimator.workflow.comparing.records import TrainingRecord
from keras_tpu_estimator.workflow.comparing.report import ComparisonReport


def compare(  # noqa: PLR0913 - all but three are keywords
    old: TPUEstimator | Callable[..., Any],
    new: TPUEstimator | Callable[..., Any],
    input_fn: InputFn,
    *,
    checkpoint: PathLike | None = None,
    steps: int = 10,
    tolerance: float = 1e-5,
    mapping: Mapping[str, str] | None = None,
    serving_input_receiver_fn: Callable[[], Any] | None = None,
) -> ComparisonReport:
    """Compares two programs, such as an old program and its port.

    Both begin each step with the same values and the same batch, without dropout. What
    they compute is compared in the order of computation: losses, gradients, learning
    rates, optimizer state and variables of each step, then the tensors of `host_call`
    and summaries, the metrics of `evaluate`, the predictions, and the signatures of
    exports. The first difference ends the comparison, with the layer, variable or step
    that explains it. Nothing is written into the estimators' directories.

    Args:
        old: A `TPUEstimator`, or a `model_fn` without hyperparameters.
        new: The other one, in any form that this package runs.
        input_fn: The input of both.
        checkpoint: The checkpoint of the old program to start from. Defaults to its
            initial values.
        steps: Number of steps of training. Defaults to 10.
        tolerance: Relative difference that is accepted. What rounding explains is
            accepted in any case. Defaults to 1e-5.
        mapping: Paths of variables of the new program by those of the old one, for
            those that names, shapes and order do not pair. Defaults to none.
        serving_input_receiver_fn: The receivers with which both are exported, as in
            `TPUEstimator.export_saved_model`. Defaults to `None`, for no export.

    Returns:
        The report: `is_equal`, `finding`, and as a text with `str`.

    Raises:
        ValueError: An argument is wrong, or a program does not run. Other errors of
            the new program propagate; if the old one cannot evaluate or predict, a
            note of the report says so.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_tpu_estimator as kte
    >>> def model_fn(features, labels, mode, params):
    ...     outputs = keras.layers.Dense(1)(features)
    ...     loss = keras.ops.mean((outputs - labels) ** 2)
    ...     optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    ...     train_op = optimizer.minimize(loss)
    ...     return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
    >>> def input_fn(params):
    ...     return np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    >>> kte.compare(model_fn, model_fn, input_fn, steps=2).is_equal
    True
    """
    with tempfile.TemporaryDirectory() as directory:
        contexts = context_of(old, directory), context_of(new, directory)
        first = OldProgram(contexts[0], directory)
        first.train(input_fn, steps, values_of(checkpoint))
        second = NewProgram(contexts[1], directory, mapping)
        second.train(input_fn, first.training)
        results = [
            TrainingComparison(
                first.training,
                second.training,
                first.copies,
                second.pairing,
                tolerance,
            ).run()
        ]
        if results[0].finding is None:
            results += _of_other_modes(contexts, first, second, input_fn, tolerance)
        if serving_input_receiver_fn is not None and not any(
            result.finding for result in results
        ):
            export = registry.part("export").Export(
                directory, {ModeKeys.PREDICT: serving_input_receiver_fn}, None, False
            )
            signatures = first.export(export), second.export(export)
            results.append(call_results.of_exports(*signatures))
    return report_of(
        results, first.training, second.training, second.pairing, second.notes
    )


def report_of(
    results: Sequence[Comparison],
    old: TrainingRecord,
    new: TrainingRecord,
    pairing: Pairing,
    notes: Sequence[str] = (),
) -> ComparisonReport:
    """Returns the report on the results of all modes, up to the first difference."""
    return ComparisonReport(
        len(new.steps),
        tuple(one for result in results for one in result.compared),
        next((r.finding for r in results if r.finding is not None), None),
        pairing,
        (*notes, *(note for result in results for note in result.notes)),
        (tuple(old.dropout), tuple(new.dropout)),
    )


def _of_other_modes(
    contexts: tuple[EstimatorContext, EstimatorContext],
    first: OldProgram,
    second: NewProgram,
    input_fn: InputFn,
    tolerance: float,
) -> Iterator[Comparison]:
    """Compares evaluations and predictions after training, where both have them."""
    count = len(first.training.steps)
    calls: tuple[tuple[str, Any, Any, Callable[..., Comparison]], ...] = (
        (ModeKeys.EVAL, first.evaluate, second.evaluate, call_results.of_evaluations),
        (ModeKeys.PREDICT, first.predict, second.predict, call_results.of_predictions),
    )
    for mode, run_old, run_new, compared in calls:
        if not all(can_run(context, mode) for context in contexts):
            yield Comparison((), notes=(f"Mode {mode!r} has no batch size.",))
            continue
        try:
            old, again = run_old(input_fn, count)
        except Exception as error:
            # Not every program has all modes.
            note = f"Mode {mode!r} is not compared, because the old program raises "
            yield Comparison((), notes=(f"{note}{type(error).__name__}: {error}",))
            continue
        yield compared(old, run_new(input_fn, old), again, tolerance)


def context_of(program: Any, directory: str) -> EstimatorContext:
    """Returns the functions and settings of an estimator, or of a `model_fn`.

    `directory` is that of an estimator of a `model_fn`.
    """
    if isinstance(program, TPUEstimator):
        context: EstimatorContext = vars(program)["_context"]
        return context
    if not callable(program):
        raise ValueError(
            "A program must be a TPUEstimator or a `model_fn`. Received: "
            f"{program!r}. Pass the estimator that trains it."
        )
    config = RunConfig(tf_random_seed=1)
    estimator = TPUEstimator(program, directory, config, use_tpu=False)
    return context_of(estimator, directory)
