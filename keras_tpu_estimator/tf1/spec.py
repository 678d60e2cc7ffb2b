"""The specs that a TF1 `model_fn` returns: tensors and operations of its graph."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from keras_tpu_estimator.api.hooks.hook_list import validate_hooks
from keras_tpu_estimator.api.model_fn import spec
from keras_tpu_estimator.api.model_fn.export_outputs import (
    check_export_outputs,
    signature_outputs,
)
from keras_tpu_estimator.api.model_fn.spec_checks import (
    EVALUATION_NAMES,
    NO_NAMES,
    OwnNames,
    check_metric_ops,
    checked_host_function,
)
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.tf1.graph.inner_ops import check_outside
from keras_tpu_estimator.tf1.host.arguments import map_arguments

_HOOKS = ("training_hooks", "evaluation_hooks", "prediction_hooks")


@dataclasses.dataclass(frozen=True)
class TPUEstimatorSpec(spec.TPUEstimatorSpec):
    """The operations of a TF1 model in one mode.

    The counterpart of `tf.compat.v1.estimator.tpu.TPUEstimatorSpec` for a
    `tf1.model_fn`.

    Args:
        mode: A value of `ModeKeys`.
        predictions: Tensor or dict of tensors of the graph, batch-major.
            Required in PREDICT.
        loss: A scalar tensor, or a tensor of shape `[1]`. Required in TRAIN and EVAL.
        train_op: An operation or tensor that runs a step and increments the
            global step. Required in TRAIN.
        eval_metrics: A pair `(metric_fn, tensors)`. `metric_fn` builds a graph
            for a session on the host, and returns a dict from names to pairs
            `(value, update_op)`, as `tf.metrics` makes them. It receives values
            other than tensors, such as a number or `None`, unchanged.
        export_outputs: A dict from signature names to export outputs.
        scaffold_fn: A function that is called in the graph, for example to
            call `init_from_checkpoint`, and returns a `tf.train.Scaffold`. A
            warning names fields that have no effect.
        host_call: A pair `(function, tensors)`. The function builds a graph
            for a session on the host, and returns the operations to run
            after each step, such as `all_v2_summary_ops()`. It receives values
            other than tensors unchanged.
        training_hooks: Hooks of TensorFlow or of this package, and callbacks,
            for training.
        evaluation_hooks: The same for evaluation.
        prediction_hooks: The same for prediction.
        train_metrics: A pair like `eval_metrics`, for metrics that training
            reports.

    Raises:
        ValueError: A required field is missing or malformed.
        TypeError: A field has a wrong type.
        RuntimeError: The number of arguments of a host function differs from
            the number of its tensors.
    """

    def __post_init__(self) -> None:
        _check_host_functions(self, "eval_metrics")
        if self.scaffold_fn is not None and not callable(self.scaffold_fn):
            raise TypeError(
                "`scaffold_fn` must be a function that returns a "
                f"tf.train.Scaffold. Received: {self.scaffold_fn!r} of type "
                f"{type(self.scaffold_fn).__name__}"
            )
        _check_common(self)

    def as_estimator_spec(self) -> "EstimatorSpec":
        """Returns this spec for one device, with its metrics in the graph.

        Returns:
            An `EstimatorSpec` whose `eval_metric_ops` are the result of `metric_fn` for
            these tensors, with the same `host_call` and `train_metrics`.
        """
        return spec.for_one_core(self, EstimatorSpec)


@dataclasses.dataclass(frozen=True)
class EstimatorSpec(spec.EstimatorSpec):
    """The operations of a TF1 model in one mode on one device.

    The counterpart of `tf.compat.v1.estimator.EstimatorSpec` for a
    `tf1.model_fn`.

    Args:
        mode: A value of `ModeKeys`.
        predictions: As in `TPUEstimatorSpec`.
        loss: As in `TPUEstimatorSpec`.
        train_op: As in `TPUEstimatorSpec`.
        eval_metric_ops: A dict from names to pairs `(value, update_op)` of the
            graph, as `tf.metrics` makes them.
        export_outputs: As in `TPUEstimatorSpec`.
        training_chief_hooks: More hooks for training.
        training_hooks: As in `TPUEstimatorSpec`.
        scaffold: A `tf.train.Scaffold`. A warning names fields that have no
            effect. Defaults to `tf.train.Scaffold()`.
        evaluation_hooks: As in `TPUEstimatorSpec`.
        prediction_hooks: As in `TPUEstimatorSpec`.
        host_call: As in `TPUEstimatorSpec`.
        train_metrics: As in `TPUEstimatorSpec`.

    Raises:
        ValueError: A required field is missing or malformed.
        TypeError: A field has a wrong type.
        RuntimeError: The number of arguments of a host function differs from
            the number of its tensors.
    """

    def __post_init__(self) -> None:
        import tensorflow as tf

        kind = tf.compat.v1.train.Scaffold
        if self.scaffold is None:
            _set(self, "scaffold", kind())
        if not isinstance(self.scaffold, kind):
            raise TypeError(
                "`scaffold` must be a tf.train.Scaffold. Received: "
                f"{self.scaffold!r} of type {type(self.scaffold).__name__}"
            )
        _check_host_functions(self)
        hooks = validate_hooks(self.training_chief_hooks, "training_chief_hooks")
        _set(self, "training_chief_hooks", hooks)
        _check_common(self)
        reserved = EVALUATION_NAMES if self.mode == ModeKeys.EVAL else NO_NAMES
        _set(self, "eval_metric_ops", _metric_ops(self.eval_metric_ops, reserved))


Spec = TPUEstimatorSpec | EstimatorSpec


def _set(record: Spec, name: str, value: Any) -> None:
    """Replaces a field of a frozen record while it is made."""
    object.__setattr__(record, name, value)


def _check_host_functions(record: Spec, *names: str) -> None:
    for name in (*names, "host_call", "train_metrics"):
        pair = getattr(record, name)
        if pair is not None:
            function, tensors = checked_host_function(name, pair)
            tensors = _host_arguments(name, tensors)
            _set(record, name, checked_host_function(name, (function, tensors)))


def _check_common(record: Spec) -> None:
    for name in _HOOKS:
        _set(record, name, validate_hooks(getattr(record, name), name))
    if record.loss is not None:
        _set(record, "loss", _scalar(record.loss))
    if record.predictions is not None:
        predictions = _as_tensors("predictions", record.predictions)
        _set(record, "predictions", predictions)
    _check_required(record)
    _check_train_op(record.train_op)
    if record.export_outputs is not None:
        is_used = record.mode == ModeKeys.PREDICT
        check_export_outputs(record.export_outputs, are_used=is_used)
    _set(record, "export_outputs", _export_outputs(record))


def _export_outputs(record: Spec) -> Any:
    """Returns the export outputs, in PREDICT with the default one."""
    import tensorflow as tf

    outputs, predictions = record.export_outputs, record.predictions
    if record.mode != ModeKeys.PREDICT or tf.executing_eagerly():
        return outputs
    # An export reports invalid names with a specific error.
    is_plain = tf.is_tensor(predictions) or (
        isinstance(predictions, Mapping)
        and all(isinstance(name, str) for name in predictions)
    )
    if outputs is None and not is_plain:
        return None
    return signature_outputs(outputs, predictions)


def _check_required(record: Spec) -> None:
    required = {
        ModeKeys.TRAIN: ("loss", "train_op"),
        ModeKeys.EVAL: ("loss",),
        ModeKeys.PREDICT: ("predictions",),
    }
    for name in required.get(str(record.mode), ()):
        if getattr(record, name) is None:
            raise ValueError(
                f"`{name}` must be set in a spec of mode {record.mode!r}. "
                f"Received: {name}=None. Pass it."
            )


def _check_train_op(op: Any) -> None:
    import tensorflow as tf

    if op is None:
        return
    if isinstance(op, tf.Operation) or tf.is_tensor(op):
        _check_graph("train_op", op)
        return
    raise TypeError(
        "`train_op` must be an operation or a tensor of the graph, such "
        f"as the result of `optimizer.minimize(loss, global_step)`. Received: "
        f"{op!r} of type {type(op).__name__}. Put several into tf.group."
    )


def _metric_ops(metric_ops: Any, own_names: OwnNames) -> dict[str, tuple[Any, Any]]:
    """Returns the metrics of the graph, with Keras metrics as pairs."""
    import tensorflow as tf

    if isinstance(metric_ops, Mapping):
        metric_ops = {
            name: _of_keras(metric) if hasattr(metric, "updates") else metric
            for name, metric in metric_ops.items()
        }
    pairs = check_metric_ops(metric_ops, own_names)
    for name, pair in pairs.items():
        for tensor in jax.tree.leaves(pair[1]):
            if not isinstance(tensor, tf.Operation):
                _as_tensor(f"eval_metric_ops[{name!r}]", tensor)
    return {
        name: (_metric_value(f"eval_metric_ops[{name!r}]", value), update)
        for name, (value, update) in pairs.items()
    }


def _metric_value(name: str, value: Any) -> Any:
    """Returns the elements of a metric's value, which may be nested tuples."""
    import tensorflow as tf

    if isinstance(value, list | tuple):
        return tuple(_metric_value(name, element) for element in value)
    if isinstance(value, tf.Operation):
        _check_graph(name, value)
        return value
    return _as_tensor(name, value)


def _of_keras(metric: Any) -> tuple[Any, Any]:
    """Returns a metric of tf-keras as a pair, and makes its variables local."""
    import tensorflow as tf

    v1 = tf.compat.v1
    if not metric.updates:
        raise ValueError(
            f"The metric {metric.name!r} must be updated before it is returned. "
            "Call its `update_state` with this batch."
        )
    for update in metric.updates:
        _check_graph(f"eval_metric_ops[{metric.name!r}]", update)
    for key in (v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES):
        names = {variable.op.name for variable in v1.get_collection(key)}
        for variable in metric.variables:
            if variable.op.name not in names:
                v1.add_to_collection(key, variable)
    return metric.result(), tf.group(*metric.updates)


def _scalar(loss: Any) -> Any:
    import tensorflow as tf

    loss = _as_tensor("loss", loss)
    if loss.shape.num_elements() != 1:
        raise ValueError(
            "`loss` must be a scalar. Received a tensor of shape "
            f"{loss.shape}. Take its mean or its sum."
        )
    return loss if loss.shape.rank == 0 else tf.reshape(loss, ())


def _as_tensors(name: str, tree: Any) -> Any:
    """Converts variables and numbers to tensors of the graph."""
    if isinstance(tree, Mapping):
        return {
            key: _as_tensor(f"{name}[{key!r}]", value) for key, value in tree.items()
        }
    if isinstance(tree, list | tuple):
        return [_as_tensor(f"{name}[{i}]", v) for i, v in enumerate(tree)]
    return _as_tensor(name, tree)


def _host_arguments(name: str, arguments: Any) -> Any:
    """Returns values for a host function, after checking their tensors."""
    if isinstance(arguments, Mapping):
        return {
            key: _host_argument(f"{name}[{key!r}]", value)
            for key, value in arguments.items()
        }
    return [
        _host_argument(f"{name}[{number}]", value)
        for number, value in enumerate(arguments)
    ]


def _host_argument(name: str, value: Any) -> Any:
    """Returns a value for a host function, after checking its tensors."""
    import tensorflow as tf

    def checked(leaf: Any) -> Any:
        return _as_tensor(name, leaf) if tf.is_tensor(leaf) else leaf

    return map_arguments(checked, value)


def _as_tensor(name: str, value: Any) -> Any:
    import tensorflow as tf

    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"`{name}` must be a tensor of the graph that model_fn builds. "
            f"Received: {value!r} of type {type(value).__name__}"
        ) from error
    _check_graph(name, tensor)
    return tensor


def _check_graph(name: str, element: Any) -> None:
    """Raises a ValueError if an element is in a different graph than the spec."""
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or element.graph is graph:
        return
    check_outside(f"`{name}`", graph, element)
    raise ValueError(
        f"`{name}` must be in the default graph, which this call of model_fn "
        f"builds. Received: {element!r} of another graph. Make it inside "
        "model_fn, and keep no tensors between calls."
    )
