"""What a `model_fn` returns: frozen records, checked as they are made."""

import dataclasses
import inspect
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax
import keras
import numpy as np

from keras_tpu_estimator.export_outputs import check_export_outputs
from keras_tpu_estimator.hooks.session_run_hook import Hook
from keras_tpu_estimator.hooks.session_run_hook import validate_hooks
from keras_tpu_estimator.modes import ModeKeys
from keras_tpu_estimator.optimizers import Update
from keras_tpu_estimator.outside_compilation import HostTensor
from keras_tpu_estimator.scaffold import Scaffold
from keras_tpu_estimator.scaffold import make_scaffold
from keras_tpu_estimator.variables import current_scope


class HostFunction(NamedTuple):
    """A function that runs on the host, and the tensors it is given.

    Attributes:
        function: Called with tensors, by position or by name.
        tensors: List, tuple or dict of tensors.
    """

    function: Callable[..., Any]
    tensors: Any

    def call(self, tensors: Any) -> Any:
        """Calls the function with these values of its tensors."""
        if isinstance(tensors, Mapping):
            return self.function(**tensors)
        return self.function(*tensors)


@dataclasses.dataclass(frozen=True)
class TPUEstimatorSpec:
    """The operations of a model in one mode, as `TPUEstimator` runs them.

    The counterpart of `tf.compat.v1.estimator.tpu.TPUEstimatorSpec`.

    Args:
        mode: A value of `ModeKeys`.
        predictions: Tensor or dict of tensors, batch-major. Required in
            PREDICT.
        loss: Scalar tensor, or one of shape `[1]`. Required in TRAIN and EVAL.
        train_op: What `CrossShardOptimizer.minimize` or `apply_gradients`
            returned, or a sequence of these. Required in TRAIN.
        eval_metrics: A pair `(metric_fn, tensors)`. `metric_fn` runs on the
            host after each step with the tensors of all cores, concatenated on
            their first axis, and returns a dict from names to Keras metrics or
            to `(value, update)` pairs from `keras_tpu_estimator.metrics`.
        export_outputs: Dict from signature names to export outputs, such as
            `export.PredictOutput`; used in PREDICT. One of several must be
            called 'serving_default'. Defaults to that one with all
            predictions.
        scaffold_fn: Returns a `Scaffold`; called on the host, once for each
            program.
        host_call: A pair `(function, tensors)`, run on the host as
            `eval_metrics` is, after every training step.
        training_hooks: Hooks and Keras callbacks to add in training.
        evaluation_hooks: Hooks and Keras callbacks to add in evaluation.
        prediction_hooks: Hooks and Keras callbacks to add in prediction.
        train_metrics: A pair like `eval_metrics`, for metrics that training
            reports: of all steps since the report before.

    Raises:
        ValueError: Something required is missing or malformed.
        TypeError: Something is of a wrong type.
        RuntimeError: A host function takes another number of arguments than
            it has tensors.

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
        for name in ("eval_metrics", "host_call", "train_metrics"):
            pair = getattr(self, name)
            if pair is not None:
                _set(self, name, _host_function(name, pair))
        if self.scaffold_fn is not None and not callable(self.scaffold_fn):
            raise TypeError(
                "`scaffold_fn` should be a function that returns a Scaffold. "
                f"Received: {self.scaffold_fn!r} of type "
                f"{type(self.scaffold_fn).__name__}"
            )
        _check_common(self)

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hooks for this spec's mode."""
        return _hooks_of_mode(self)

    def make_scaffold(self) -> Scaffold:
        """The scaffold that `scaffold_fn` returns, or one without settings.

        Raises:
            ValueError: It returns none.
        """
        return make_scaffold(self.scaffold_fn or Scaffold)

    def as_estimator_spec(self) -> "EstimatorSpec":
        """This spec with its host functions called, for one core.

        Returns:
            An `EstimatorSpec` whose `eval_metric_ops` are what `metric_fn`
            returned for these tensors.
        """
        metric_ops = {}
        if self.mode == ModeKeys.EVAL and self.eval_metrics is not None:
            metric_ops = self.eval_metrics.call(self.eval_metrics.tensors)
        return EstimatorSpec(
            mode=self.mode,
            predictions=self.predictions,
            loss=self.loss,
            train_op=self.train_op,
            eval_metric_ops=metric_ops,
            export_outputs=self.export_outputs,
            scaffold=self.scaffold_fn and self.scaffold_fn(),
            training_hooks=self.training_hooks,
            evaluation_hooks=self.evaluation_hooks,
            prediction_hooks=self.prediction_hooks,
        )


@dataclasses.dataclass(frozen=True)
class EstimatorSpec:
    """The operations of a model in one mode, for one core.

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

    Raises:
        ValueError: Something required is missing or malformed.
        TypeError: Something is of a wrong type.
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

    def __post_init__(self) -> None:
        _set(
            self,
            "training_chief_hooks",
            validate_hooks(self.training_chief_hooks, "training_chief_hooks"),
        )
        _check_common(self)
        _set(self, "eval_metric_ops", check_metric_ops(self.eval_metric_ops))
        if self.scaffold is None:
            _set(self, "scaffold", Scaffold())
        if not isinstance(self.scaffold, Scaffold):
            raise TypeError(
                "`scaffold` should be a Scaffold. Received: "
                f"{self.scaffold!r} of type {type(self.scaffold).__name__}"
            )

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hooks for this spec's mode."""
        return _hooks_of_mode(self)

    def make_scaffold(self) -> Scaffold:
        """The scaffold."""
        return self.scaffold

    def _replace(self, **fields: Any) -> "EstimatorSpec":
        """This spec with other values of some fields, as a named tuple has.

        Raises:
            ValueError: `mode` would change.
        """
        if fields.get("mode", self.mode) != self.mode:
            raise ValueError(
                "The mode of an EstimatorSpec cannot be replaced. Expected "
                f"mode={self.mode!r}. Received: {fields['mode']!r}. Make a "
                "new EstimatorSpec instead."
            )
        return dataclasses.replace(self, **fields)


Spec = TPUEstimatorSpec | EstimatorSpec


def check_metric_ops(metric_ops: Any) -> dict[str, Any]:
    """Checks the metrics that a `metric_fn` or a `model_fn` returned.

    Args:
        metric_ops: Dict from names to Keras metrics or (value, update) tuples.

    Returns:
        The dict; an empty one for `None`.

    Raises:
        TypeError: It is no dict, or a value is neither.
        ValueError: A metric is called `loss` or `global_step`.
    """
    metric_ops = {} if metric_ops is None else metric_ops
    if not isinstance(metric_ops, Mapping):
        raise TypeError(
            "Metrics should be a dict from names to Keras metrics or (value, "
            f"update) tuples. Received: {metric_ops!r} of type "
            f"{type(metric_ops).__name__}"
        )
    for name, metric in metric_ops.items():
        if name in ("loss", "global_step"):
            raise ValueError(
                f"A metric may not be called {name!r}: evaluate returns its "
                "own value under that name. Give the metric another name."
            )
        is_pair = isinstance(metric, tuple) and len(metric) == 2
        if not is_pair and not isinstance(metric, keras.metrics.Metric):
            raise TypeError(
                f"The metric {name!r} should be a keras.metrics.Metric or a "
                f"(value, update) tuple. Received: {metric!r} of type "
                f"{type(metric).__name__}"
            )
        if not is_pair:
            _check_updated(name, metric)
    return dict(metric_ops)


def _check_updated(name: str, metric: keras.metrics.Metric) -> None:
    scope = current_scope()
    paths = {variable.path for variable in metric.variables}
    if scope is not None and paths and not paths & scope.updated:
        raise ValueError(
            f"The metric {name!r} was never updated. Expected a call of its "
            "`update_state` with this batch before it is returned."
        )


def metric_value(metric: Any) -> Any:
    """The value of a Keras metric or of a (value, update) tuple."""
    if isinstance(metric, keras.metrics.Metric):
        return metric.result()
    return keras.ops.convert_to_tensor(metric[0])


def _set(record: Any, name: str, value: Any) -> None:
    """Normalises a field of a frozen record while it is made."""
    object.__setattr__(record, name, value)


def _host_function(name: str, pair: Any) -> HostFunction:
    if not isinstance(pair, list | tuple):
        raise ValueError(
            f"`{name}` should be a tuple or list of a function and its "
            f"tensors. Received: {pair!r} of type {type(pair).__name__}"
        )
    if len(pair) != 2:
        raise ValueError(
            f"`{name}` should have two elements, a function and its tensors. "
            f"Received {len(pair)}: {pair!r}. Put all tensors into one list."
        )
    function, tensors = pair
    if not callable(function):
        raise TypeError(
            f"The first element of `{name}` should be callable. Received: "
            f"{function!r} of type {type(function).__name__}"
        )
    if not isinstance(tensors, list | tuple | dict):
        raise ValueError(
            f"The tensors of `{name}` should be a tuple, list or dict. "
            f"Received: {type(tensors).__name__}. Put a single tensor into a "
            "list."
        )
    if not isinstance(tensors, dict):
        _check_number_of_arguments(name, function, tensors)
    return HostFunction(function, tensors)


def _check_number_of_arguments(
    name: str, function: Callable[..., Any], tensors: Any
) -> None:
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    named = [p.name for p in parameters if p.kind in positional]
    if len(named) != len(tensors):
        raise RuntimeError(
            f"The function of `{name}` takes {len(named)} arguments {named}, "
            f"but there are {len(tensors)} tensors. Give it one tensor for "
            "each argument, arguments with defaults included."
        )


def _check_common(spec: Spec) -> None:
    """Checks and normalises the fields that both kinds of spec have."""
    for name in ("training_hooks", "evaluation_hooks", "prediction_hooks"):
        _set(spec, name, validate_hooks(getattr(spec, name), name))
    _set(spec, "train_op", _train_ops(spec.mode, spec.train_op))
    _set(spec, "loss", _loss(spec.mode, spec.loss))
    _set(spec, "predictions", _predictions(spec.mode, spec.predictions))
    if spec.export_outputs is not None:
        check_export_outputs(
            spec.export_outputs, are_used=spec.mode == ModeKeys.PREDICT
        )


def _train_ops(mode: str | None, train_op: Any) -> Any:
    if train_op is None or (
        isinstance(train_op, list | tuple) and not train_op
    ):
        if mode == ModeKeys.TRAIN:
            raise ValueError(
                "Missing train_op: in mode 'train' a spec should have what "
                "CrossShardOptimizer(...).minimize(loss) returns. Received: "
                f"train_op={train_op!r}"
            )
        return None
    sequence = isinstance(train_op, list | tuple)
    ops = tuple(train_op) if sequence else (train_op,)
    for op in ops:
        if not isinstance(op, Update | keras.Variable) and not _is_tensor(op):
            raise TypeError(
                "`train_op` should be what CrossShardOptimizer(...).minimize("
                "loss) or .apply_gradients(...) returns, or a sequence of "
                f"these. Received: {op!r} of type {type(op).__name__}"
            )
    return ops


def _loss(mode: str | None, loss: Any) -> Any:
    if loss is None:
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise ValueError(
                f"Missing loss: in mode {mode!r} a spec should have a scalar "
                "tensor as its loss. Received: loss=None"
            )
        return None
    if isinstance(loss, keras.Variable):
        loss = loss.value
    if not _is_tensor(loss):
        raise TypeError(
            "`loss` should be a tensor. Received: "
            f"{loss!r} of type {type(loss).__name__}. Compute it with "
            "keras.ops from the model's outputs."
        )
    if loss.size != 1:
        raise ValueError(
            "`loss` should be a scalar. Received a tensor of shape "
            f"{tuple(loss.shape)}. Take its mean or its sum."
        )
    return loss if loss.ndim == 0 else keras.ops.reshape(loss, ())


def _predictions(mode: str | None, predictions: Any) -> Any:
    if predictions is None:
        if mode == ModeKeys.PREDICT:
            raise ValueError(
                "Missing predictions: in mode 'infer' a spec should have a "
                "dict of tensors. Received: predictions=None"
            )
        return {}
    leaves = (
        predictions.items()
        if isinstance(predictions, Mapping)
        else [("predictions", predictions)]
    )
    for name, leaf in leaves:
        if not _is_tensor(leaf) and not isinstance(
            leaf, keras.Variable | keras.KerasTensor | HostTensor
        ):
            raise TypeError(
                "`predictions` should be a tensor or a dict of tensors. "
                f"Received for {name!r}: {leaf!r} of type "
                f"{type(leaf).__name__}. Convert it with "
                "keras.ops.convert_to_tensor, or flatten the nest."
            )
    return predictions


def _hooks_of_mode(spec: Spec) -> tuple[Hook, ...]:
    return {
        ModeKeys.TRAIN: getattr(spec, "training_chief_hooks", ())
        + spec.training_hooks,
        ModeKeys.EVAL: spec.evaluation_hooks,
        ModeKeys.PREDICT: spec.prediction_hooks,
    }.get(spec.mode, ())


def _is_tensor(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray | np.generic)
