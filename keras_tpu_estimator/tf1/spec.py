"""What a TF1 `model_fn` returns: tensors and operations of its graph."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.hooks.session_run_hook import validate_hooks
from keras_tpu_estimator.model_fn import spec
from keras_tpu_estimator.model_fn.spec_checks import checked_host_function

_NOT_YET = {
    "host_call": "Compute it in a hook, or leave it out.",
    "train_metrics": "Give `eval_metrics`, which evaluation counts.",
}


@dataclasses.dataclass(frozen=True)
class TPUEstimatorSpec(spec.TPUEstimatorSpec):
    """The operations of a TF1 model in one mode.

    The counterpart of `tf.compat.v1.estimator.tpu.TPUEstimatorSpec` for a
    `tf1.model_fn`.

    Args:
        mode: A value of `ModeKeys`.
        predictions: Dict of tensors of the graph, batch-major. Required in
            PREDICT.
        loss: Scalar tensor, or one of shape `[1]`. Required in TRAIN and EVAL.
        train_op: Operation or tensor that makes a step, and increments the
            global step. Required in TRAIN.
        eval_metrics: A pair `(metric_fn, tensors)`. `metric_fn` builds a graph
            for a session on the host, and returns a dict from names to pairs
            `(value, update_op)`, as `tf.metrics` makes them.
        export_outputs: Accepted; exports cannot use it yet.
        scaffold_fn: Called in the graph, as where `init_from_checkpoint` is
            called. Returns a `tf.train.Scaffold` without settings of its own.
        host_call: Has to be `None` in this version.
        training_hooks: Hooks and callbacks of this package, for training.
        evaluation_hooks: The same for evaluation.
        prediction_hooks: The same for prediction.
        train_metrics: Has to be `None` in this version.

    Raises:
        ValueError: Something required is missing or malformed.
        TypeError: Something is of a wrong type.
        RuntimeError: `metric_fn` takes another number of arguments than it has
            tensors.
        NotImplementedError: Something is given that cannot be used yet.
    """

    def __post_init__(self) -> None:
        for name, advice in _NOT_YET.items():
            if getattr(self, name) is not None:
                raise NotImplementedError(
                    f"`{name}` of a TF1 model_fn should be None: it is not "
                    f"supported yet. Received: {getattr(self, name)!r}. "
                    f"{advice}"
                )
        if self.eval_metrics is not None:
            function, tensors = checked_host_function(
                "eval_metrics", self.eval_metrics
            )
            tensors = _as_tensors("eval_metrics", tensors)
            pair = checked_host_function("eval_metrics", (function, tensors))
            self._set("eval_metrics", pair)
        for name in ("training_hooks", "evaluation_hooks", "prediction_hooks"):
            self._set(name, validate_hooks(getattr(self, name), name))
        if self.loss is not None:
            self._set("loss", _scalar(self.loss))
        if self.predictions is not None:
            self._set(
                "predictions", _as_tensors("predictions", self.predictions)
            )
        self._check_required()
        self._check_train_op()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_required(self) -> None:
        required = {
            ModeKeys.TRAIN: ("loss", "train_op"),
            ModeKeys.EVAL: ("loss",),
            ModeKeys.PREDICT: ("predictions",),
        }
        for name in required.get(str(self.mode), ()):
            if getattr(self, name) is None:
                raise ValueError(
                    f"Missing {name}: in mode {self.mode!r} a spec should "
                    f"have it. Received: {name}=None"
                )

    def _check_train_op(self) -> None:
        import tensorflow as tf

        op = self.train_op
        if op is None or isinstance(op, tf.Operation) or tf.is_tensor(op):
            return
        raise TypeError(
            "`train_op` should be an operation or a tensor of the graph, such "
            f"as `optimizer.minimize(loss, global_step)` returns. Received: "
            f"{op!r} of type {type(op).__name__}. Put several into tf.group."
        )


def _scalar(loss: Any) -> Any:
    import tensorflow as tf

    loss = _as_tensor("loss", loss)
    if loss.shape.num_elements() != 1:
        raise ValueError(
            "`loss` should be a scalar. Received a tensor of shape "
            f"{loss.shape}. Take its mean or its sum."
        )
    return loss if loss.shape.rank == 0 else tf.reshape(loss, ())


def _as_tensors(name: str, nest: Any) -> Any:
    """Tensors of the graph in place of variables and numbers."""
    if isinstance(nest, Mapping):
        return {
            key: _as_tensor(f"{name}[{key!r}]", value)
            for key, value in nest.items()
        }
    if isinstance(nest, list | tuple):
        return [_as_tensor(f"{name}[{i}]", v) for i, v in enumerate(nest)]
    return _as_tensor(name, nest)


def _as_tensor(name: str, value: Any) -> Any:
    import tensorflow as tf

    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"`{name}` should be a tensor of the graph that model_fn builds. "
            f"Received: {value!r} of type {type(value).__name__}"
        ) from error
