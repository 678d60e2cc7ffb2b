"""The results of a `model_fn`: frozen records that check their fields."""

import dataclasses
from typing import Any, Self, TypeVar

from keras_tpu_estimator.api.hooks.hook_list import validate_hooks
from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.api.model_fn.export_outputs import (
    check_export_outputs,
)
from keras_tpu_estimator.api.model_fn.scaffold import Scaffold, make_scaffold
from keras_tpu_estimator.api.model_fn.spec_checks import (
    EVALUATION_NAMES,
    NO_NAMES,
    check_metric_ops,
    checked_host_function,
    checked_loss,
    checked_predictions,
    checked_train_ops,
)
from keras_tpu_estimator.base.common.field_checks import suggesting
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.named_tuple_like import NamedTupleLike
from keras_tpu_estimator.base.common.shown import shown


@suggesting
@dataclasses.dataclass(frozen=True)
class TPUEstimatorSpec(NamedTupleLike):
    """The operations of a model in one mode, for `TPUEstimator`.

    The counterpart of `tf.compat.v1.estimator.tpu.TPUEstimatorSpec`.

    Args:
        mode: A value of `ModeKeys`.
        predictions: Tensor or dict of tensors, with the batch as the first
            dimension. Required in PREDICT.
        loss: Scalar tensor, or one of shape `[1]`. Required in TRAIN and EVAL.
        train_op: The result of `CrossShardOptimizer.minimize` or
            `apply_gradients`, or a sequence of them. Required in TRAIN.
        eval_metrics: A pair `(metric_fn, tensors)`. After each step,
            `metric_fn` runs on the host with the tensors of all replicas,
            concatenated along the first axis. It returns a dict from names to
            Keras metrics or to `(value, update)` pairs of
            `keras_tpu_estimator.metrics`.
        export_outputs: Dict from signature names to export outputs, such as
            `export.PredictOutput`; used in PREDICT. One of several must be
            named 'serving_default'. Defaults to that one with all predictions.
        scaffold_fn: Returns a `Scaffold`; called on the host, once for each
            program.
        host_call: A pair `(function, tensors)`, run on the host like
            `eval_metrics`, after every step, in every mode. In prediction the
            tensors include the rows that pad a smaller batch.
        training_hooks: Hooks and Keras callbacks to add in training.
        evaluation_hooks: Hooks and Keras callbacks to add in evaluation.
        prediction_hooks: Hooks and Keras callbacks to add in prediction.
        train_metrics: A pair like `eval_metrics`, for metrics that training
            logs. They cover all steps since the previous log line. A metric
            cannot have the name of another logged value, such as `step`.

    Raises:
        ValueError: A required field is missing or malformed.
        TypeError: A field has a wrong type.
        RuntimeError: The number of arguments of a host function differs from
            the number of its tensors.

    Example:

    >>> import numpy as np
    >>> import keras_tpu_estimator as kte
    >>> spec = kte.TPUEstimatorSpec(
    ...     mode=kte.ModeKeys.PREDICT, predictions={"y": np.zeros((4, 1))}
    ... )
    >>> spec.predictions["y"].shape
    (4, 1)
    """

    mode: str | None
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metrics: Any = None
    export_outputs: Any = None
    scaffold_fn: Any = None
    host_call: Any = None
    training_hooks: Any = None
    evaluation_hooks: Any = None
    prediction_hooks: Any = None
    train_metrics: Any = None

    def __post_init__(self) -> None:
        _check_host_functions(self, "eval_metrics")
        if self.scaffold_fn is not None and not callable(self.scaffold_fn):
            raise TypeError(
                "`scaffold_fn` must be a function that returns a Scaffold. "
                f"Received: {shown(self.scaffold_fn)}"
            )
        _check_common(self)

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hooks for this spec's mode."""
        return _hooks_of_mode(self)

    def make_scaffold(self) -> Scaffold:
        """Returns the scaffold of `scaffold_fn`, or one without settings.

        Raises:
            ValueError: `scaffold_fn` does not return a `Scaffold`.
        """
        return make_scaffold(self.scaffold_fn or Scaffold)

    def as_estimator_spec(self) -> "EstimatorSpec":
        """Returns this spec for one core, with its host functions called.

        Returns:
            An `EstimatorSpec` whose `eval_metric_ops` are the results of
            `metric_fn` for these tensors, with the same `host_call` and
            `train_metrics`.
        """
        return for_one_core(self, EstimatorSpec)


@suggesting
@dataclasses.dataclass(frozen=True)
class EstimatorSpec(NamedTupleLike):
    """The operations of a model in one mode on one core.

    The counterpart of `tf.estimator.EstimatorSpec`.

    Args:
        mode: A value of `ModeKeys`.
        predictions: Tensor or dict of tensors. Required in PREDICT.
        loss: Scalar tensor. Required in TRAIN and EVAL.
        train_op: As in `TPUEstimatorSpec`. Required in TRAIN.
        eval_metric_ops: Dict from names to Keras metrics, updated with this
            batch, or to `(value, update)` tuples.
        export_outputs: As in `TPUEstimatorSpec`.
        training_chief_hooks: Hooks and Keras callbacks to add in training.
        training_hooks: Hooks and Keras callbacks to add in training.
        scaffold: A `Scaffold`. Defaults to one without settings.
        evaluation_hooks: Hooks and Keras callbacks to add in evaluation.
        prediction_hooks: Hooks and Keras callbacks to add in prediction.
        host_call: As in `TPUEstimatorSpec`.
        train_metrics: As in `TPUEstimatorSpec`.

    Raises:
        ValueError: A required field is missing or malformed.
        TypeError: A field has a wrong type.
        RuntimeError: The number of arguments of a host function differs from
            the number of its tensors.
    """

    mode: str | None
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Any = None
    export_outputs: Any = None
    training_chief_hooks: Any = None
    training_hooks: Any = None
    scaffold: Any = None
    evaluation_hooks: Any = None
    prediction_hooks: Any = None
    host_call: Any = None
    train_metrics: Any = None

    def __post_init__(self) -> None:
        _check_host_functions(self)
        _set(
            self,
            "training_chief_hooks",
            validate_hooks(self.training_chief_hooks, "training_chief_hooks"),
        )
        _check_common(self)
        reserved_names = EVALUATION_NAMES if self.mode == ModeKeys.EVAL else NO_NAMES
        metric_ops = check_metric_ops(self.eval_metric_ops, reserved_names)
        _set(self, "eval_metric_ops", metric_ops)
        if self.scaffold is None:
            _set(self, "scaffold", Scaffold())
        if not isinstance(self.scaffold, Scaffold):
            raise TypeError(
                f"`scaffold` must be a Scaffold. Received: {shown(self.scaffold)}"
            )

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hooks for this spec's mode."""
        return _hooks_of_mode(self)

    def make_scaffold(self) -> Scaffold:
        """Returns the scaffold."""
        return self.scaffold

    def as_estimator_spec(self) -> "EstimatorSpec":
        """Returns this spec."""
        return self

    def _replace(self, **fields: Any) -> Self:
        """Returns a copy with other values of some fields, except the mode.

        Raises:
            ValueError: `mode` would change, a field does not exist, or a value
                is wrong.
            TypeError: A value has a wrong type.
        """
        if fields.get("mode", self.mode) != self.mode:
            raise ValueError(
                "The mode of an EstimatorSpec cannot be replaced. Expected "
                f"mode={self.mode!r}. Received: {fields['mode']!r}. Make a "
                "new EstimatorSpec instead."
            )
        return super()._replace(**fields)


Spec = TPUEstimatorSpec | EstimatorSpec
OneCore = TypeVar("OneCore", bound=EstimatorSpec)


def for_one_core(spec: TPUEstimatorSpec, kind: type[OneCore]) -> OneCore:
    """Returns a spec of another class, with the results of `metric_fn`."""
    metric_ops = {}
    if spec.mode == ModeKeys.EVAL and spec.eval_metrics is not None:
        metric_ops = spec.eval_metrics.call(spec.eval_metrics.tensors)
    return kind(
        mode=spec.mode,
        predictions=spec.predictions,
        loss=spec.loss,
        train_op=spec.train_op,
        eval_metric_ops=metric_ops,
        export_outputs=spec.export_outputs,
        scaffold=spec.scaffold_fn and spec.scaffold_fn(),
        training_hooks=spec.training_hooks,
        evaluation_hooks=spec.evaluation_hooks,
        prediction_hooks=spec.prediction_hooks,
        host_call=spec.host_call,
        train_metrics=spec.train_metrics,
    )


def _set(record: Any, name: str, value: Any) -> None:
    """Sets a field of a frozen record in its constructor."""
    object.__setattr__(record, name, value)


def _check_host_functions(spec: Spec, *names: str) -> None:
    """Checks and normalizes the pairs of a function and tensors."""
    for name in (*names, "host_call", "train_metrics"):
        pair = getattr(spec, name)
        if pair is not None:
            _set(spec, name, checked_host_function(name, pair))


def _check_common(spec: Spec) -> None:
    """Checks and normalizes the fields that both kinds of spec have."""
    for name in ("training_hooks", "evaluation_hooks", "prediction_hooks"):
        _set(spec, name, validate_hooks(getattr(spec, name), name))
    _set(spec, "train_op", checked_train_ops(spec.mode, spec.train_op))
    _set(spec, "loss", checked_loss(spec.mode, spec.loss))
    _set(spec, "predictions", checked_predictions(spec.mode, spec.predictions))
    if spec.export_outputs is not None:
        check_export_outputs(
            spec.export_outputs, are_used=spec.mode == ModeKeys.PREDICT
        )


def _hooks_of_mode(spec: Spec) -> tuple[Hook, ...]:
    return {
        ModeKeys.TRAIN: getattr(spec, "training_chief_hooks", ()) + spec.training_hooks,
        ModeKeys.EVAL: spec.evaluation_hooks,
        ModeKeys.PREDICT: spec.prediction_hooks,
    }.get(str(spec.mode), ())
