"""Heads of several objectives: the sum of the losses of other heads."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.api.model_fn.export_outputs import PredictOutput
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.tf1.reimplemented.estimator import MetricKeys
from keras_tpu_estimator.tf1.spec import EstimatorSpec
from keras_tpu_estimator.tf1_tools.tf_estimator.heads import (
    BaseHead,
    Head,
    LossSpec,
    train_op_of,
)

_DEFAULT, _PREDICT = "serving_default", "predict"


class MultiHead(BaseHead):
    """Several heads, whose labels and logits are dicts by the names of the heads.

    Args:
        heads: Heads with different names. An export serves the first by default.
        head_weights: The factors of the losses. Defaults to equal ones.

    Raises:
        ValueError: There are no heads, a head has no name, or the number of weights
            differs.
    """

    def __init__(
        self, heads: Sequence[Any], head_weights: Sequence[float] | None = None
    ):
        check_heads(heads, head_weights)
        self._heads: tuple[Head, ...] = tuple(heads)
        self._weights = tuple(head_weights or [1.0] * len(self._heads))

    @property
    def name(self) -> str:
        """The names of all heads."""
        return "_".join(str(head.name) for head in self._heads)

    @property
    def logits_dimension(self) -> int:
        """The size of the last axis of the logits of all heads together."""
        return sum(head.logits_dimension for head in self._heads)

    def create_loss(
        self, features: Mapping[str, Any], mode: str, logits: Any, labels: Any
    ) -> LossSpec:
        """Returns the sum of the losses, and dicts of the other parts by head.

        Args:
            features: The features, which contain the weights.
            mode: A `ModeKeys`; has no effect.
            logits: A dict by head, or a tensor of all logits.
            labels: A dict by head.
        """
        parts = split_logits(self._heads, logits)
        total: list[Any] = []
        fields: dict[str, dict[Any, Any]] = collections.defaultdict(dict)
        for head, factor in zip(self._heads, self._weights, strict=True):
            loss = head.create_loss(features, mode, parts[head.name], labels[head.name])
            total.append(loss.training_loss * factor)
            fields["unreduced_loss"][head.name] = loss.unreduced_loss * factor
            fields["weights"][head.name] = loss.weights * factor
            fields["processed_labels"][head.name] = loss.processed_labels
        return LossSpec(tf.add_n(total), **fields)

    def create_estimator_spec(
        self,
        features: Mapping[str, Any],
        mode: str,
        logits: Any,
        labels: Any = None,
        optimizer: Any = None,
        train_op_fn: Callable[[Any], Any] | None = None,
    ) -> EstimatorSpec:
        """Returns the spec of a `model_fn`, with the results of all heads.

        Args:
            features: The features, which contain the weights.
            mode: A `ModeKeys`.
            logits: A dict by head, or a tensor of all logits.
            labels: A dict by head; required except in PREDICT.
            optimizer: A `tf.train.Optimizer` that minimizes the loss in TRAIN.
            train_op_fn: Returns the train op of a loss, in place of `optimizer`.

        Raises:
            ValueError: The labels or logits of a head are missing or have another
                shape, or not exactly one of `optimizer` and `train_op_fn` is given in
                TRAIN.
        """
        parts = split_logits(self._heads, logits)
        check_labels(self._heads, labels, mode)
        specs = {
            head.name: head.create_estimator_spec(
                features=features,
                mode=mode,
                logits=parts[head.name],
                labels=labels[head.name] if labels else None,
                train_op_fn=no_train_op,
            )
            for head in self._heads
        }
        predictions = merged_predictions(specs)
        if mode == ModeKeys.PREDICT:
            outputs = merged_outputs(specs)
            return EstimatorSpec(mode, predictions, export_outputs=outputs)
        losses = [spec.loss for spec in specs.values()]
        loss = tf.add_n([x * w for x, w in zip(losses, self._weights, strict=True)])
        if mode == ModeKeys.EVAL:
            metrics: dict[str, Any] = {}
            for name, spec in specs.items():
                metrics[f"{MetricKeys.LOSS}/{name}"] = tf.metrics.mean(spec.loss)
                metrics |= spec.eval_metric_ops or {}
            return EstimatorSpec(mode, predictions, loss, eval_metric_ops=metrics)
        train_op = train_op_of(loss, optimizer, train_op_fn, updates=())
        with tf.name_scope(""):
            tf.summary.scalar(MetricKeys.LOSS, loss)
        return EstimatorSpec(mode, predictions, loss, train_op)


def no_train_op(loss: Any) -> Any:
    """Returns the train op of one head, whose loss is trained with those of others."""
    del loss
    return tf.no_op()


def check_heads(heads: Sequence[Any], weights: Sequence[float] | None) -> None:
    """Checks the arguments of a head of several heads."""
    if not heads or any(head.name is None for head in heads):
        raise ValueError(
            f"`heads` must be heads with names. Received: {heads!r}. Pass `name` to "
            "each head."
        )
    if weights and len(weights) != len(heads):
        raise ValueError(
            f"`head_weights` must have one number for each of {len(heads)} heads. "
            f"Received: {weights!r}. Leave it out for equal weights."
        )


def check_labels(heads: Sequence[Any], labels: Any, mode: str) -> None:
    """Checks that labels are a dict by head."""
    missing = [head.name for head in heads]
    if isinstance(labels, Mapping):
        missing = [name for name in missing if name not in labels]
    elif labels is None and mode == ModeKeys.PREDICT:
        missing = []
    if missing:
        raise ValueError(
            f"Labels must be a dict with the names of all heads. Received: {labels!r}, "
            f"without {missing}. Return such a dict from input_fn."
        )


def split_logits(heads: Sequence[Any], logits: Any) -> Mapping[Any, Any]:
    """Returns logits by head."""
    if isinstance(logits, Mapping):
        missing = [head.name for head in heads if head.name not in logits]
        if missing:
            raise ValueError(
                "Logits must be a tensor, or a dict with the names of all heads. "
                f"Received a dict without {missing}. Add the logits of these heads."
            )
        return logits
    sizes = [head.logits_dimension for head in heads]
    logits = tf.convert_to_tensor(logits)
    if logits.shape[-1] != sum(sizes):
        raise ValueError(
            f"Logits must have the shape [batch, ..., {sum(sizes)}]. Received: "
            f"{logits.shape}. Use a last layer of {sum(sizes)} units."
        )
    names = [head.name for head in heads]
    return dict(zip(names, tf.split(logits, sizes, -1), strict=True))


def merged_predictions(specs: Mapping[Any, EstimatorSpec]) -> dict[Any, Any]:
    """Returns the predictions of all heads by pairs of head and key."""
    return {
        (name, key): value
        for name, spec in specs.items()
        for key, value in (spec.predictions or {}).items()
    }


def merged_outputs(specs: Mapping[Any, EstimatorSpec]) -> dict[str, Any]:
    """Returns the signatures of all heads, of which the first head's is the default."""
    first = next(iter(specs.values()))
    outputs: dict[str, Any] = {_DEFAULT: (first.export_outputs or {})[_DEFAULT]}
    predicted: dict[str, Any] = {}
    for name, spec in specs.items():
        for key, output in (spec.export_outputs or {}).items():
            outputs[name if key == _DEFAULT else f"{name}/{key}"] = output
            if key == _PREDICT:
                tensors = output.tensors.items()
                predicted |= {f"{name}/{k}": v for k, v in tensors}
    outputs[_PREDICT] = PredictOutput(predicted)
    return outputs
