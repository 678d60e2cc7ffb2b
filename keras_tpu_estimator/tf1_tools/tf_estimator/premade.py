"""Ready-made estimators of `tf.estimator`: linear models and networks of columns."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.tf1_tools.tf_estimator.class_heads import (
    BinaryClassHead,
    MultiClassHead,
)
from keras_tpu_estimator.tf1_tools.tf_estimator.estimators import Estimator
from keras_tpu_estimator.tf1_tools.tf_estimator.heads import SUM, Head, RegressionHead

_OPTIMIZERS = {
    "Adagrad": tf.train.AdagradOptimizer,
    "Adam": tf.train.AdamOptimizer,
    "Ftrl": tf.train.FtrlOptimizer,
    "RMSProp": tf.train.RMSPropOptimizer,
    "SGD": tf.train.GradientDescentOptimizer,
}
_MOMENTUM, _EPSILON = 0.999, 1e-3


@dataclasses.dataclass(frozen=True)
class Linear:
    """A linear model of feature columns.

    Attributes:
        columns: The feature columns.
        optimizer: An optimizer, its name, or a function that returns one.
        combiner: The operation that combines the weights of several ids of an example.
    """

    columns: tuple[Any, ...]
    optimizer: Any = "Ftrl"
    combiner: str = "sum"

    def logits(self, features: Mapping[str, Any], units: int) -> Any:
        """Returns logits, and writes summaries of the weights."""
        parts: dict[Any, Any] = {}
        logits = tf.feature_column.linear_model(
            features,
            self.columns,
            units,
            self.combiner,
            cols_to_vars=parts,
        )
        (bias,) = parts.pop("bias")
        if units > 1:
            tf.summary.histogram("bias", bias)
        else:
            tf.summary.scalar("bias", bias[0])
        weights = [tf.reshape(part, [-1]) for some in parts.values() for part in some]
        zeros = tf.nn.zero_fraction(tf.concat(weights, 0))
        tf.summary.scalar("fraction_of_zero_weights", zeros)
        return logits


@dataclasses.dataclass(frozen=True)
class Network:
    """Dense layers behind feature columns.

    Attributes:
        columns: The feature columns.
        hidden_units: The number of units of each hidden layer.
        optimizer: An optimizer, its name, or a function that returns one.
        activation: The activation of the hidden layers, or its name in `tf.nn`.
        dropout: The probability with which training drops a unit.
        batch_norm: Whether hidden layers are normalized.
    """

    columns: tuple[Any, ...]
    hidden_units: tuple[int, ...]
    optimizer: Any = "Adagrad"
    activation: Callable[[Any], Any] | str | None = tf.nn.relu
    dropout: float | None = None
    batch_norm: bool = False

    def logits(self, features: Mapping[str, Any], units: int, mode: str) -> Any:
        """Returns logits, and writes summaries of each layer."""
        is_training = mode == ModeKeys.TRAIN
        with tf.variable_scope("input_from_feature_columns"):
            net = tf.feature_column.input_layer(features, self.columns)
        for number, hidden in enumerate(self.hidden_units):
            name = f"hiddenlayer_{number}"
            net = _dense(net, hidden, name)
            if isinstance(self.activation, str):
                net = getattr(tf.nn, self.activation)(net)
            elif self.activation is not None:
                net = self.activation(net)
            if self.dropout is not None and is_training:
                net = tf.nn.dropout(net, rate=self.dropout)
            if self.batch_norm:
                net = _normalized(net, is_training, f"{name}/batchnorm_{number}")
            _summarize(net, name)
        logits = _dense(net, units, "logits")
        _summarize(logits, "logits")
        return logits


def _dense(x: Any, units: int, name: str) -> Any:
    with tf.variable_scope(name):
        initializer = tf.glorot_uniform_initializer()
        kernel = tf.get_variable(
            "kernel", [x.shape[-1], units], initializer=initializer
        )
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return tf.nn.bias_add(tf.matmul(x, kernel), bias)


def _normalized(x: Any, is_training: bool, name: str) -> Any:
    """Returns normalized units, whose averages are updated with the train op."""
    with tf.variable_scope(name):
        size, zeros, ones = [x.shape[-1]], tf.zeros_initializer(), tf.ones_initializer()
        gamma = tf.get_variable("gamma", size, initializer=ones)
        beta = tf.get_variable("beta", size, initializer=zeros)
        fixed = functools.partial(tf.get_variable, shape=size, trainable=False)
        averages = (
            fixed("moving_mean", initializer=zeros),
            fixed("moving_variance", initializer=ones),
        )
        mean, variance = averages
        if is_training:
            mean, variance = tf.nn.moments(x, [0])
            for average, value in zip(averages, (mean, variance), strict=True):
                change = (average - value) * (1 - _MOMENTUM)
                update = tf.assign_sub(average, change)
                tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, _EPSILON)


def _summarize(x: Any, layer: str = "") -> None:
    name = f"{tf.get_variable_scope().name or 'dnn'}/{layer}".rstrip("/")
    tf.summary.scalar(f"{name}/fraction_of_zero_values", tf.nn.zero_fraction(x))
    tf.summary.histogram(f"{name}/activation", x)


def get_optimizer_instance(opt: Any, learning_rate: float | None = None) -> Any:
    """Returns the optimizer of a name, of a function, or the given one.

    Args:
        opt: A `tf.train.Optimizer`, its name, or a function that returns one.
        learning_rate: The learning rate of an optimizer that is given by its name.

    Raises:
        ValueError: `opt` is something else, or a name without a learning rate.
    """
    if isinstance(opt, str) and opt in _OPTIMIZERS:
        if learning_rate is None:
            raise ValueError(
                f"`learning_rate` must be a number with the optimizer {opt!r}. "
                "Received: None. Pass it."
            )
        return _OPTIMIZERS[opt](learning_rate=learning_rate)
    optimizer = opt() if callable(opt) else opt
    if not isinstance(optimizer, tf.train.Optimizer):
        raise ValueError(
            f"An optimizer must be a tf.train.Optimizer, one of {sorted(_OPTIMIZERS)}, "
            f"or a function that returns an optimizer. Received: {optimizer!r}. Use "
            "tf.train.AdamOptimizer."
        )
    return optimizer


def _check_features(features: Any) -> None:
    if not isinstance(features, dict):
        raise ValueError(
            "Features must be a dict of tensors by the keys of the columns. Received: "
            f"{type(features).__name__}. Return a dict from input_fn."
        )


def _scope(name: str, features: Mapping[str, Any]) -> Any:
    """Returns a variable scope whose variables have one partition, as in TensorFlow.

    Optimizers name their slots accordingly.
    """
    partitioner = tf.min_max_variable_partitioner(max_partitions=1)
    return tf.variable_scope(
        name, values=tuple(features.values()), partitioner=partitioner
    )


def _network_model_fn(head: Head, network: Network) -> Callable[..., Any]:
    """Makes the `model_fn` of a network."""

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        optimizer = get_optimizer_instance(network.optimizer, 0.05)
        _check_features(features)
        with _scope("dnn", features):
            logits = network.logits(features, head.logits_dimension, mode)
            return head.create_estimator_spec(
                features=features,
                mode=mode,
                logits=logits,
                labels=labels,
                optimizer=optimizer,
            )

    return model_fn


def _linear_model_fn(head: Head, linear: Linear) -> Callable[..., Any]:
    """Makes the `model_fn` of a linear model."""

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        _check_features(features)
        if linear.optimizer:
            optimizer = get_optimizer_instance(linear.optimizer, 0.2)
        else:
            optimizer = get_optimizer_instance(
                "Ftrl", min(0.2, len(linear.columns) ** -0.5)
            )
        with _scope("linear", features):
            logits = linear.logits(features, head.logits_dimension)
            return head.create_estimator_spec(
                features=features,
                mode=mode,
                logits=logits,
                labels=labels,
                optimizer=optimizer,
            )

    return model_fn


def _combined_model_fn(
    head: Head, linear: Linear, network: Network
) -> Callable[..., Any]:
    """Makes the `model_fn` of the sum of a linear model and a network.

    Raises:
        ValueError: Both have no columns, or the network has no hidden layers.
    """
    if not linear.columns and not network.columns:
        raise ValueError(
            "`linear_feature_columns` or `dnn_feature_columns` must contain columns. "
            "Received none. Pass a list of feature columns."
        )
    if network.columns and not network.hidden_units:
        raise ValueError(
            "`dnn_hidden_units` must contain numbers of units if there are "
            "`dnn_feature_columns`. Received none. Pass, for example, [64, 32]."
        )

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        _check_features(features)
        units = head.logits_dimension
        parts: dict[str, tuple[Any, Any]] = {}
        if network.columns:
            optimizer = get_optimizer_instance(network.optimizer, 0.001)
            with _scope("dnn", features) as scope:
                logits = network.logits(features, units, mode)
            parts[scope.name] = logits, optimizer
        if linear.columns:
            rate = min(0.005, 1 / math.sqrt(len(linear.columns)))
            optimizer = get_optimizer_instance(linear.optimizer, rate)
            with _scope("linear", features) as scope:
                logits = linear.logits(features, units)
                _summarize(logits)
            parts[scope.name] = logits, optimizer

        def train_op_fn(loss: Any) -> Any:
            updates = [
                optimizer.minimize(loss, var_list=tf.trainable_variables(scope))
                for scope, (_, optimizer) in parts.items()
            ]
            with tf.control_dependencies(updates):
                return tf.assign_add(tf.train.get_global_step(), 1).op

        return head.create_estimator_spec(
            features=features,
            mode=mode,
            logits=tf.add_n([logits for logits, _ in parts.values()]),
            labels=labels,
            train_op_fn=train_op_fn,
        )

    return model_fn


def arguments_of(names: str) -> inspect.Signature:
    """Returns a signature whose arguments have these names."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(n, kind) for n in names.split()])


_NETWORK = (
    "optimizer activation_fn dropout input_layer_partitioner config warm_start_from"
    " loss_reduction batch_norm"
)
_LINEAR = "optimizer config partitioner warm_start_from loss_reduction sparse_combiner"
_COMBINED = (
    "model_dir linear_feature_columns linear_optimizer dnn_feature_columns"
    " dnn_optimizer dnn_hidden_units dnn_activation_fn dnn_dropout"
)
_REST = (
    "input_layer_partitioner config warm_start_from loss_reduction batch_norm"
    " linear_sparse_combiner"
)
CLASSES = "n_classes weight_column label_vocabulary"
NUMBERS = "label_dimension weight_column"
_OF_HEADS = {*CLASSES.split(), *NUMBERS.split(), "loss_reduction"}


class WithHead(Estimator):
    """An estimator that makes its head of some arguments.

    Attributes:
        __signature__: The arguments, in the order of `tf.estimator`.
    """

    __signature__: inspect.Signature

    def __init__(self, *args: Any, **kwargs: Any):
        arguments = self.__signature__.bind_partial(*args, **kwargs).arguments
        of_head = {name: arguments.pop(name) for name in _OF_HEADS & arguments.keys()}
        of_head.setdefault("loss_reduction", SUM)
        # The next class has a head.
        super().__init__(head=self._head(of_head), **arguments)  # type: ignore[call-arg]

    def _head(self, options: dict[str, Any]) -> Head:
        if "label_dimension" in self.__signature__.parameters:
            return RegressionHead(**options)
        if options.get("n_classes", 2) != 2:
            return MultiClassHead(**options)
        options.pop("n_classes", None)
        return BinaryClassHead(**options)


class DNNEstimator(Estimator):
    """A network of feature columns, with any head.

    The arguments of this class, and of the others of this file, are those of
    `tf.estimator`. Partitioners have no effect, because variables are not split.
    """

    def __init__(
        self,
        head: Head,
        hidden_units: Iterable[int],
        feature_columns: Iterable[Any],
        model_dir: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Any = tf.nn.relu,
        dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
    ):
        network = Network(
            tuple(feature_columns or ()),
            tuple(hidden_units),
            optimizer,
            activation_fn,
            dropout,
            batch_norm,
        )
        super().__init__(
            _network_model_fn(head, network),
            model_dir,
            config,
            warm_start_from=warm_start_from,
        )


class DNNClassifier(WithHead, DNNEstimator):
    """A network of feature columns for two or more classes."""

    __signature__ = arguments_of(
        f"hidden_units feature_columns model_dir {CLASSES} {_NETWORK}"
    )


class DNNRegressor(WithHead, DNNEstimator):
    """A network of feature columns for numbers."""

    __signature__ = arguments_of(
        f"hidden_units feature_columns model_dir {NUMBERS} {_NETWORK}"
    )


class LinearEstimator(Estimator):
    """A linear model of feature columns, with any head."""

    def __init__(
        self,
        head: Head,
        feature_columns: Iterable[Any],
        model_dir: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        partitioner: Any = None,
        sparse_combiner: str = "sum",
        warm_start_from: Any = None,
    ):
        linear = Linear(tuple(feature_columns or ()), optimizer, sparse_combiner)
        super().__init__(
            _linear_model_fn(head, linear),
            model_dir,
            config,
            warm_start_from=warm_start_from,
        )


class LinearClassifier(WithHead, LinearEstimator):
    """A linear model of feature columns for two or more classes."""

    __signature__ = arguments_of(f"feature_columns model_dir {CLASSES} {_LINEAR}")


class LinearRegressor(WithHead, LinearEstimator):
    """A linear model of feature columns for numbers."""

    __signature__ = arguments_of(f"feature_columns model_dir {NUMBERS} {_LINEAR}")


class DNNLinearCombinedEstimator(Estimator):
    """The sum of a linear model and a network, with any head."""

    def __init__(
        self,
        head: Head,
        model_dir: Any = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Iterable[int] | None = None,
        dnn_activation_fn: Any = tf.nn.relu,
        dnn_dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: Any = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
        warm_start_from: Any = None,
    ):
        linear = Linear(
            tuple(linear_feature_columns or ()),
            linear_optimizer,
            linear_sparse_combiner,
        )
        network = Network(
            tuple(dnn_feature_columns or ()),
            tuple(dnn_hidden_units or ()),
            dnn_optimizer,
            dnn_activation_fn,
            dnn_dropout,
            batch_norm,
        )
        super().__init__(
            _combined_model_fn(head, linear, network),
            model_dir,
            config,
            warm_start_from=warm_start_from,
        )


class DNNLinearCombinedClassifier(WithHead, DNNLinearCombinedEstimator):
    """The sum of a linear model and a network, for two or more classes."""

    __signature__ = arguments_of(f"{_COMBINED} {CLASSES} {_REST}")


class DNNLinearCombinedRegressor(WithHead, DNNLinearCombinedEstimator):
    """The sum of a linear model and a network, for numbers."""

    __signature__ = arguments_of(f"{_COMBINED} {NUMBERS} {_REST}")
