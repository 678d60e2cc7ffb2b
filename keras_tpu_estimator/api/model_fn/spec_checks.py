"""Checks of the fields of a spec."""

import dataclasses
import fnmatch
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import keras
import numpy as np

from keras_tpu_estimator.api.model_fn.outside_compilation import HostTensor
from keras_tpu_estimator.api.model_fn.update import Update
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.tracing.variables import current_scope


class HostFunction(NamedTuple):
    """A function that runs on the host, and its tensors by position or by name."""

    function: Callable[..., Any]
    tensors: PyTree

    @property
    def fed(self) -> PyTree:
        """Returns the tensors copied from each step, at least one to count steps."""
        return self.tensors or [np.zeros(1, "int32")]

    def call(self, tensors: PyTree) -> Any:
        """Calls the function with these values of its tensors."""
        if not self.tensors:
            return self.function()
        if isinstance(tensors, dict):
            return self.function(**tensors)
        return self.function(*tensors)


@dataclasses.dataclass(frozen=True)
class HostValue:
    """The value of a metric that no device can hold: text, or a tuple, as a pytree of
    NumPy arrays and bytes.
    """

    value: PyTree


class OwnNames(NamedTuple):
    """Names that metrics cannot have because other values, such as those that 'evaluate
    returns' (`owner`), have them; `*` stands for any characters.
    """

    owner: str
    patterns: tuple[str, ...]

    def check(self, name: str) -> None:
        """Raises a `ValueError` if a metric has one of these names."""
        if any(fnmatch.fnmatchcase(str(name), pattern) for pattern in self.patterns):
            names = ", ".join(map(repr, self.patterns))
            raise ValueError(
                f"A metric cannot be named {name!r}, because {self.owner} its "
                f"own values under the names {names}. Give the metric another "
                "name."
            )


EVALUATION_NAMES = OwnNames("evaluate returns", ("loss", "global_step"))
# For modes without metrics.
NO_NAMES = OwnNames("nothing has", ())


def check_metric_ops(
    metric_ops: Any, own_names: OwnNames = EVALUATION_NAMES
) -> dict[str, Any]:
    """Checks the metrics that a `metric_fn` or a `model_fn` returned."""
    metric_ops = {} if metric_ops is None else metric_ops
    if not isinstance(metric_ops, Mapping):
        raise TypeError(
            "Metrics must be a dict from names to Keras metrics or (value, "
            f"update) tuples. Received: {shown(metric_ops)}"
        )
    for name, metric in metric_ops.items():
        if not isinstance(name, str):
            raise TypeError(
                "The name of a metric must be a string. Received: "
                f"{shown(name)}. Pass {str(name)!r}."
            )
        own_names.check(name)
        is_pair = isinstance(metric, tuple) and len(metric) == 2
        if not is_pair and not isinstance(metric, keras.metrics.Metric):
            raise TypeError(
                f"The metric {name!r} must be a keras.metrics.Metric or a "
                f"(value, update) tuple. Received: {shown(metric)}"
            )
        if not is_pair:
            _check_updated(name, metric)
    return dict(metric_ops)


def _check_updated(name: str, metric: keras.metrics.Metric) -> None:
    scope = current_scope()
    paths = {variable.path for variable in metric.variables}
    if scope is not None and paths and not paths & scope.updated:
        raise ValueError(
            f"The metric {name!r} must be updated before it is returned. "
            "Received a metric without an update. Call its `update_state` "
            "with this batch."
        )


def metric_value(metric: Any) -> Any:
    """Returns the value of a Keras metric or of a (value, update) tuple."""
    if isinstance(metric, keras.metrics.Metric):
        return metric.result()
    value, _ = metric
    if isinstance(value, HostValue):
        return value.value
    return keras.ops.convert_to_tensor(value)


def checked_host_function(name: str, pair: Any) -> HostFunction:
    if not isinstance(pair, list | tuple):
        raise ValueError(
            f"`{name}` must be a tuple or list of a function and its tensors. "
            f"Received: {shown(pair)}"
        )
    if len(pair) != 2:
        raise ValueError(
            f"`{name}` must have two elements, a function and its tensors. "
            f"Received {len(pair)}: {shown(pair)}. Put all tensors into one "
            "list."
        )
    function, tensors = pair
    if not callable(function):
        raise TypeError(
            f"The first element of `{name}` must be callable. Received: "
            f"{shown(function)}"
        )
    if not isinstance(tensors, list | tuple | dict):
        raise ValueError(
            f"The tensors of `{name}` must be a tuple, list or dict. "
            f"Received: {type(tensors).__name__}. Put a single tensor into a "
            "list."
        )
    if not isinstance(tensors, dict):
        _check_number_of_arguments(name, function, tensors)
    return HostFunction(function, tensors)


def _check_number_of_arguments(
    name: str, function: Callable[..., Any], tensors: PyTree
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
            f"but there are {len(tensors)} tensors. Pass one tensor for each "
            "argument, including arguments with defaults."
        )


def checked_train_ops(mode: str | None, train_op: Any) -> Any:
    if train_op is None or (isinstance(train_op, list | tuple) and not train_op):
        if mode == ModeKeys.TRAIN:
            raise ValueError(
                "Missing train_op: in mode 'train' a spec must have the "
                "result of kte.minimize(optimizer, loss). Received: "
                f"train_op={shown(train_op)}"
            )
        return None
    # Operations of a group may be groups.
    ops = tuple(
        jax.tree.leaves(
            train_op, is_leaf=lambda node: not isinstance(node, list | tuple)
        )
    )
    for op in ops:
        if not isinstance(op, Update | keras.Variable) and not _is_tensor(op):
            raise TypeError(
                "`train_op` must be the result of kte.minimize(optimizer, "
                "loss) or CrossShardOptimizer(...).apply_gradients(...), or "
                f"a sequence of these. Received: {shown(op)}"
            )
    return ops


def checked_loss(mode: str | None, loss: Any) -> Any:
    if loss is None:
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise ValueError(
                f"Missing loss: in mode {mode!r} a spec must have a scalar "
                "tensor as its loss. Received: loss=None"
            )
        return None
    if isinstance(loss, keras.Variable):
        loss = loss.value
    if not _is_tensor(loss):
        raise TypeError(
            f"`loss` must be a tensor. Received: {shown(loss)}. Compute it "
            "with keras.ops from the model's outputs."
        )
    if loss.size != 1:
        raise ValueError(
            "`loss` must be a scalar. Received a tensor of shape "
            f"{tuple(loss.shape)}. Take its mean or its sum."
        )
    return loss if loss.ndim == 0 else keras.ops.reshape(loss, ())


def checked_predictions(mode: str | None, predictions: PyTree) -> Any:
    if predictions is None:
        if mode == ModeKeys.PREDICT:
            raise ValueError(
                "Missing predictions: in mode 'infer' a spec must have a "
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
                "`predictions` must be a tensor or a dict of tensors. "
                f"Received for {name!r}: {shown(leaf)}. Convert it with "
                "keras.ops.convert_to_tensor, or flatten the pytree."
            )
    return predictions


def _is_tensor(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray | np.generic)
