"""`tf.estimator.Estimator` and `TPUEstimator` for a `model_fn` in TF1 code."""

import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.api.config import run_config
from keras_tpu_estimator.api.config.tpu_config import IterationsPerLoop
from keras_tpu_estimator.api.config.validation import check_signature
from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.api.model_fn.export_outputs import PredictOutput
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.params import argument_names, copied
from keras_tpu_estimator.base.common.types import InputFn, PathLike
from keras_tpu_estimator.estimator import tpu_estimator
from keras_tpu_estimator.tf1.graph.building import in_any_graph
from keras_tpu_estimator.tf1.marking import TF1ModelFn
from keras_tpu_estimator.tf1.marking import model_fn as marked
from keras_tpu_estimator.tf1_tools.tf_estimator.run_configs import RunConfig


class TPUEstimator(tpu_estimator.TPUEstimator):
    """The counterpart of `tf.estimator.tpu.TPUEstimator` for TF1 code.

    It wraps `model_fn` in `tf1.model_fn`. With `use_tpu=True` it uses all devices that
    JAX has and ignores `TPUConfig.num_shards`. With `use_tpu=False`,
    `TPUConfig.iterations_per_loop` has no effect, as in TensorFlow.

    Args:
        model_fn: A function that builds a TF1 graph.
        model_dir: As in `keras_tpu_estimator.TPUEstimator`, like all others.
        config: See there.
        params: See there.
        use_tpu: See there.
        *args: See there.
        **kwargs: See there.

    Raises:
        ValueError: As there.
        TypeError: As there.

    Example:

    >>> from keras_tpu_estimator.tf1_tools.tf_estimator import tpu
    >>> def model_fn(features, labels, mode, params):
    ...     raise NotImplementedError
    >>> config = tpu.RunConfig(tpu.TPUConfig(num_shards=512))
    >>> tpu.TPUEstimator(
    ...     model_fn, config=config, train_batch_size=1024
    ... ).config.tpu_config.num_shards is None
    True
    """

    def __init__(
        self,
        model_fn: Callable[..., Any] | None = None,
        model_dir: PathLike | None = None,
        config: run_config.RunConfig | None = None,
        params: Any = None,
        use_tpu: bool = True,
        *args: Any,
        **kwargs: Any,
    ):
        config = _on_this_machine(config)
        super().__init__(
            _marked(model_fn),
            model_dir,
            config,
            params,
            use_tpu,
            *args,
            **kwargs,
        )

    @staticmethod
    def _loop_length(
        config: run_config.RunConfig, use_tpu: bool
    ) -> IterationsPerLoop | None:
        return config.tpu_config.iterations if use_tpu else None

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The model function, callable in any TensorFlow graph."""
        return _in_any_graph(super().model_fn)


class Estimator(tpu_estimator.TPUEstimator):
    """The counterpart of `tf.estimator.Estimator` for TF1 code.

    It runs on one device with the batches of `input_fn`. `input_fn` may have no
    arguments, and `params` may have any names. Features need no batch axis, and
    predictions may have any number of rows.

    Args:
        model_fn: A function that builds a TF1 graph, and returns an
            `EstimatorSpec`.
        model_dir: As in `keras_tpu_estimator.TPUEstimator`.
        config: A `RunConfig`. Defaults to `RunConfig()`.
        params: The `params` of `model_fn` and `input_fn`, copied when the
            estimator is made. Defaults to none.
        warm_start_from: As in `keras_tpu_estimator.TPUEstimator`.

    Raises:
        ValueError: As there.
        TypeError: As there.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: PathLike | None = None,
        config: run_config.RunConfig | None = None,
        params: Any = None,
        warm_start_from: Any = None,
    ):
        check_signature(_required(model_fn), has_params=params is not None)
        self._own_params = copied({} if params is None else params)
        super().__init__(
            _marked(_with_params(model_fn, self._own_params)),
            model_dir,
            RunConfig() if config is None else config,
            use_tpu=False,
            eval_on_tpu=False,
            export_to_tpu=False,
            warm_start_from=warm_start_from,
        )

    @staticmethod
    def _loop_length(config: run_config.RunConfig, use_tpu: bool) -> None:
        """Lets loops end where hooks act, because this estimator uses no TPU."""

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The model function, callable in any TensorFlow graph."""
        return _in_any_graph(super().model_fn)

    @property
    def params(self) -> Any:
        """A copy of the hyperparameters."""
        return copied(self._own_params)

    def train(  # noqa: D102 - as in the base class
        self,
        input_fn: InputFn,
        hooks: Iterable[Hook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Any = None,
        validation: InputFn | None = None,
        validation_steps: int | None = None,
    ) -> "Estimator":
        bound = _input_fn(input_fn, self._own_params)
        super().train(
            bound,
            hooks,
            steps,
            max_steps,
            saving_listeners,
            validation,
            validation_steps,
        )
        return self

    def evaluate(  # noqa: D102 - as in the base class
        self, input_fn: InputFn, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        return super().evaluate(_input_fn(input_fn, self._own_params), *args, **kwargs)

    def _evaluation(self, input_fn: InputFn, *args: Any) -> Any:
        return super()._evaluation(_input_fn(input_fn, self._own_params), *args)

    @staticmethod
    def _rows(batch: Any) -> Iterator[Any]:
        return batch.with_own_rows().rows()

    def predict(  # noqa: D102 - as in the base class
        self, input_fn: InputFn, *args: Any, **kwargs: Any
    ) -> Iterator[Any]:
        return super().predict(_input_fn(input_fn, self._own_params), *args, **kwargs)


def _required(model_fn: Any) -> Any:
    """Returns `model_fn`, or raises an error if it is `None`."""
    if model_fn is None:
        raise ValueError(
            "`model_fn` must be a function that builds a graph. Received: "
            "None. Pass it as the first argument."
        )
    return model_fn


def _marked(model_fn: Any) -> Any:
    """Marks a callable `model_fn` as TF1 code."""
    if isinstance(model_fn, TF1ModelFn) or not callable(_required(model_fn)):
        return model_fn
    return marked(model_fn)


def _in_any_graph(model_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a marked `model_fn` callable in any default graph."""

    @functools.wraps(model_fn)
    def called(features: Any, labels: Any, mode: str, config: Any) -> Any:
        with in_any_graph():
            return model_fn(features, labels, mode, config)

    return called


def _on_this_machine(
    config: run_config.RunConfig | None,
) -> run_config.RunConfig | None:
    """Removes a device count that does not match this machine."""
    if not isinstance(config, run_config.RunConfig):
        return config
    shards = config.tpu_config.num_shards
    if shards in (None, 1, jax.device_count()):
        return config
    _logger.info(
        "TPUConfig.num_shards=%d does not match this machine. All %d devices are used.",
        shards,
        jax.device_count(),
    )
    return config.replace(tpu_config=config.tpu_config._replace(num_shards=None))


def _with_params(model_fn: Callable[..., Any], params: Any) -> Any:
    """Binds the params of this estimator to a `model_fn`."""
    names = argument_names(model_fn)

    @functools.wraps(model_fn)
    def bound(*args: Any, params: Any = None, **kwargs: Any) -> Any:
        if "params" in names:
            kwargs["params"] = copied(bound_params)
        if args:
            args = (own_features(args[0]), *args[1:])
        elif "features" in kwargs:
            kwargs["features"] = own_features(kwargs["features"])
        return model_fn(*args, **kwargs)

    bound_params = params
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
        for name in names
        if name != "params"
    ]
    added = inspect.Parameter("params", inspect.Parameter.KEYWORD_ONLY)
    bound.__signature__ = inspect.Signature([*parameters, added])  # type: ignore[attr-defined]
    return bound


@dataclasses.dataclass(frozen=True)
class _BoundInputFn:
    """An `input_fn` with the params of its estimator."""

    function: Callable[..., Any]
    params: Any

    def __call__(self, params: Any = None, mode: Any = None, config: Any = None) -> Any:
        arguments = {"params": copied(self.params), "mode": mode, "config": config}
        names = argument_names(self.function)
        passed = {n: v for n, v in arguments.items() if n in names}
        return with_features(self.function(**passed))


def _input_fn(input_fn: Any, params: Any) -> Any:
    """Binds the params of this estimator to an `input_fn`."""
    if isinstance(input_fn, _BoundInputFn) or not callable(input_fn):
        return input_fn
    return _BoundInputFn(input_fn, params)


_METRIC_ARGUMENTS = "features", "labels", "predictions", "config"


def add_metrics(estimator: Estimator, metric_fn: Callable[..., Any]) -> Estimator:
    """Returns an estimator that evaluates more metrics.

    Args:
        estimator: An `Estimator`, whose `model_dir` the new one shares.
        metric_fn: Returns a dict of metrics. It takes any of the arguments `features`,
            `labels`, `predictions` and `config`.

    Raises:
        ValueError: `metric_fn` has other arguments.
    """
    names = argument_names(metric_fn)
    unknown = sorted(set(names) - set(_METRIC_ARGUMENTS))
    if unknown:
        raise ValueError(
            f"`metric_fn` must take only {list(_METRIC_ARGUMENTS)}. Received a "
            f"function of {unknown}. Bind other arguments with functools.partial."
        )

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        spec = estimator.model_fn(features, labels, mode, config)
        if mode != ModeKeys.EVAL:
            return spec
        arguments = dict(
            zip(
                _METRIC_ARGUMENTS,
                (features, labels, spec.predictions, config),
                strict=True,
            )
        )
        added = metric_fn(**{name: arguments[name] for name in names})
        return spec._replace(eval_metric_ops={**(spec.eval_metric_ops or {}), **added})

    return _like(estimator, model_fn)


def forward_features(
    estimator: Estimator,
    keys: str | Sequence[str] | None = None,
    sparse_default_values: Mapping[str, Any] | None = None,
) -> Estimator:
    """Returns an estimator whose predictions contain features.

    Args:
        estimator: An `Estimator` with a dict of predictions.
        keys: The keys of the features. `None` means all.
        sparse_default_values: The values of missing cells of sparse features, by key.

    Raises:
        TypeError: `keys` contains something else than strings.
        ValueError: In evaluation or prediction, a feature is missing, or a prediction
            has its name, or the predictions are no dict, or a dense feature is in
            `sparse_default_values`.
    """
    keys = [keys] if isinstance(keys, str) else keys
    is_list = keys is None or isinstance(keys, list | tuple)
    if not is_list or not all(isinstance(key, str) for key in keys or ()):
        raise TypeError(
            f"`keys` must be a string or a list of strings. Received: {keys!r}. Pass "
            "the keys of features."
        )
    defaults = sparse_default_values or {}

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        spec = estimator.model_fn(features, labels, mode, config)
        if mode == ModeKeys.TRAIN:
            return spec
        if not isinstance(spec.predictions, Mapping):
            raise ValueError(
                "The predictions must be a dict. Received: "
                f"{type(spec.predictions).__name__}. Return a dict from `model_fn`."
            )
        forwarded = list(features) if keys is None else keys
        wrong = [
            key for key in forwarded if key not in features or key in spec.predictions
        ]
        if wrong:
            raise ValueError(
                "`keys` must name features, and no predictions. Received: "
                f"{wrong}, features {sorted(features)} and predictions "
                f"{sorted(spec.predictions)}. Change `keys`."
            )
        added = {key: _dense(key, features[key], defaults) for key in forwarded}
        outputs = dict(spec.export_outputs or {})
        for name in ("predict", "serving_default"):
            output = outputs.get(name)
            if isinstance(output, PredictOutput):
                outputs[name] = PredictOutput({**output.tensors, **added})
        return spec._replace(
            predictions={**spec.predictions, **added}, export_outputs=outputs or None
        )

    return _like(estimator, model_fn)


def _like(estimator: Estimator, model_fn: Callable[..., Any]) -> Estimator:
    """Returns an estimator with another `model_fn`."""
    start = estimator._context.warm_start
    return Estimator(
        model_fn, estimator.model_dir, estimator.config, warm_start_from=start
    )


def _dense(key: str, feature: Any, defaults: Mapping[str, Any]) -> Any:
    """Returns a feature as a dense tensor."""
    import tensorflow as tf

    is_sparse = isinstance(feature, tf.SparseTensor)
    if not is_sparse and key not in defaults:
        return feature
    if not is_sparse:
        raise ValueError(
            "`sparse_default_values` must contain only sparse features. Received: "
            f"{key!r}, which is dense. Remove it."
        )
    if key not in defaults:
        raise ValueError(
            f"`sparse_default_values` must contain {key!r}, because this feature is "
            "sparse. Add a value for missing cells, or leave the feature out of `keys`."
        )
    return tf.sparse.to_dense(feature, default_value=defaults[key])


# A placeholder feature for inputs without tensors. It defines the number of steps, and
# is removed before `model_fn` is called.
_STEP = "keras_tpu_estimator/step"
_SCALAR = int | float | str | bytes
# The prefix of integer keys among strings, because JAX sorts the keys of a dict.
_NUMBER = "keras_tpu_estimator/number/"


def with_features(returned: Any) -> Any:
    """Returns features and labels as arrays, with at least one array.

    Features and labels can be numbers, strings, lists of these, dicts, or empty.
    """
    if isinstance(returned, Mapping):
        return _arrays(_sortable(returned))
    if not isinstance(returned, tuple) or len(returned) != 2:
        return returned
    features, labels = returned
    if isinstance(features, Mapping):
        features = _sortable(features)
    if not jax.tree.leaves((features, labels)):
        return {_STEP: np.zeros([1], "float32")}, None
    return _arrays(features), _arrays(labels)


def own_features(features: Any) -> Any:
    """Returns the features that an `input_fn` returned."""
    if not isinstance(features, Mapping):
        return features
    if _STEP in features:
        return {}
    if not any(str(key).startswith(_NUMBER) for key in features):
        return features
    return {_own_key(key): value for key, value in features.items()}


def _sortable(features: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Converts the keys of features to strings if integers and strings are mixed."""
    if {type(key) for key in features} != {int, str}:
        return features
    return {
        f"{_NUMBER}{key}" if isinstance(key, int) else key: value
        for key, value in features.items()
    }


def _own_key(key: str) -> str | int:
    """Returns the key that `_sortable` converted."""
    number = key.removeprefix(_NUMBER)
    return key if number == key else int(number)


def _arrays(value: Any) -> Any:
    """Converts numbers, strings and lists of them to TensorFlow's arrays."""
    import tensorflow as tf

    if isinstance(value, Mapping):
        return {key: _arrays(element) for key, element in value.items()}
    is_plain = isinstance(value, list | _SCALAR)
    leaves = jax.tree.leaves(value) if is_plain else []
    if leaves and all(isinstance(leaf, _SCALAR) for leaf in leaves):
        return tf.make_ndarray(tf.make_tensor_proto(value))
    return value


_logger = logging.getLogger("keras_tpu_estimator")
