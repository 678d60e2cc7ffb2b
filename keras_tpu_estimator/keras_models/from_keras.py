"""A compiled Keras model as a `TPUEstimator`."""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.base.types import Features
from keras_tpu_estimator.base.types import Labels
from keras_tpu_estimator.base.types import MetricFn
from keras_tpu_estimator.base.types import Nest
from keras_tpu_estimator.base.types import PathLike
from keras_tpu_estimator.config.run_config import RunConfig
from keras_tpu_estimator.estimator import TPUEstimator
from keras_tpu_estimator.keras_models.compile_arguments import CompileArguments
from keras_tpu_estimator.keras_models.compile_arguments import RecompiledModel
from keras_tpu_estimator.model_fn.optimizers import CrossShardOptimizer
from keras_tpu_estimator.model_fn.optimizers import check_unscaled
from keras_tpu_estimator.model_fn.spec import TPUEstimatorSpec
from keras_tpu_estimator.tracing import keras_internals

_WEIGHTED = {"features", "sample_weights"}
_OVERRIDDEN = (
    "compute_loss",
    "compute_metrics",
    "predict_step",
    "test_step",
    "train_step",
)


def from_keras(
    keras_model: keras.Model,
    model_dir: PathLike | None = None,
    config: RunConfig | None = None,
    metric_names_map: Mapping[str, str] | None = None,
    **estimator_arguments: Any,
) -> TPUEstimator:
    """Makes an estimator of a Keras model, compiled or only to predict with.

    The counterpart of `tf.keras.estimator.model_to_estimator`. The model is
    copied, with its weights, which training starts from; the optimizer starts
    anew. What is trained is in checkpoints, and the model itself stays as it
    is.

    `evaluate` returns the compiled metrics under the names that Keras gives
    them, and the losses of several outputs. Features may also be a dict of
    'features' and 'sample_weights'. `predict` yields dicts with the model's
    output names as keys, which are also the outputs of its exports.

    Args:
        keras_model: A built model, functional, sequential, or of a class with
            a `get_config`.
        model_dir: As in `TPUEstimator`.
        config: As in `TPUEstimator`. Defaults to `RunConfig()`.
        metric_names_map: Other names for metrics, by the names that Keras gives
            them. Defaults to none.
        **estimator_arguments: Other arguments of `TPUEstimator`:
            `train_batch_size`, `eval_batch_size`, `predict_batch_size`,
            `use_tpu`, ...

    Returns:
        A `TPUEstimator`.

    Raises:
        ValueError: The model is not built, cannot be copied, or says itself
            how it is trained.
        TypeError: It is no Keras model.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import keras, numpy as np
    >>> model = keras.Sequential(
    ...     [keras.layers.Input((2,)), keras.layers.Dense(1, name="y")])
    >>> model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    >>> estimator = kte.from_keras(
    ...     model, use_tpu=False, train_batch_size=4, eval_batch_size=4)
    >>> x = np.ones((8, 2), "float32")
    >>> def input_fn(params):
    ...     return x, 3 * x[:, :1]
    >>> result = estimator.train(input_fn, steps=50).evaluate(input_fn)
    >>> sorted(result), bool(result["mae"] < 1e-3)
    (['global_step', 'loss', 'mae'], True)
    >>> next(estimator.predict(input_fn))["y"].shape
    (1,)
    """
    _check_model(keras_model)
    training = (
        CompileArguments.of(keras_model) if keras_model.compiled else None
    )
    return TPUEstimator(
        _make_model_fn(
            _copy(keras_model), training, dict(metric_names_map or {})
        ),
        model_dir=model_dir,
        config=RunConfig() if config is None else config,
        **estimator_arguments,
    )


def _check_model(model: object) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`keras_model` should be a keras.Model. Received: "
            f"{model!r} of type {type(model).__name__}. Load a file with "
            "keras.models.load_model first."
        )
    if not model.built:
        raise ValueError(
            f"The Keras model {model.name!r} should be built, so that it has "
            "weights to start from. Begin it with a keras.Input, or call it "
            "on a batch first."
        )
    own = [
        name
        for name in _OVERRIDDEN
        if getattr(type(model), name) is not getattr(keras.Model, name)
    ]
    if own:
        raise ValueError(
            f"The class {type(model).__name__} overrides {own}, which an "
            "estimator does not call. Expected a model that is trained as "
            "`compile` says. Write a model_fn that uses the model, and say "
            "there how it is trained."
        )
    check_unscaled(getattr(model, "optimizer", None))


def _copy(model: keras.Model) -> keras.Model:
    """A model like this one, on variables of its own."""
    try:
        with _not_compiled(model):
            copied = keras.models.clone_model(model)
        for to, variable in zip(copied.variables, model.variables, strict=True):
            # Keras's own `fit` and `evaluate` use up the arrays of a model.
            to.assign(jnp.array(variable.value))
    except Exception as error:
        raise ValueError(
            f"The Keras model {model.name!r} cannot be copied. Expected one "
            "whose layers and classes have a `get_config` with all arguments "
            f"of their constructor. Received {type(error).__name__}: {error} "
            "Write a model_fn that uses the model instead."
        ) from error
    return copied


@contextlib.contextmanager
def _not_compiled(model: keras.Model) -> Iterator[None]:
    """Has Keras copy a model alone, since functions have no config."""
    compiled, model.compiled = model.compiled, False
    try:
        yield
    finally:
        model.compiled = compiled


def _make_model_fn(
    model: keras.Model,
    training: CompileArguments | None,
    metric_names: Mapping[str, str],
) -> Callable[..., TPUEstimatorSpec]:
    """The `model_fn` that does what `compile` said."""

    def model_fn(
        features: Features,
        labels: Labels,
        mode: str,
        params: Mapping[str, object],
    ) -> TPUEstimatorSpec:
        del params
        features, weights = _split(features)
        is_training = mode == ModeKeys.TRAIN
        outputs = model(_inputs(model, features), training=is_training)
        predictions = _named(model, outputs)
        if mode == ModeKeys.PREDICT:
            return TPUEstimatorSpec(mode, predictions)
        if training is None:
            raise ValueError(
                f"The Keras model {model.name!r} should be compiled for mode "
                f"{mode!r}. Call its `compile` before `from_keras`; without, "
                "only `predict` works."
            )
        if training.loss is None and not model.losses:
            raise ValueError(
                f"The Keras model {model.name!r} should have a loss. Received "
                "none from `compile` and none from its layers. Pass `loss` to "
                "its `compile`."
            )
        loss = RecompiledModel(training).compute_loss(
            None, labels, outputs, weights
        )
        loss += sum(keras.ops.sum(each) for each in model.losses)
        if mode == ModeKeys.EVAL:
            metric_fn = _make_metric_fn(training, metric_names)
            tensors = [labels, outputs, weights, _masks(outputs)]
            return TPUEstimatorSpec(
                mode, predictions, loss, eval_metrics=(metric_fn, tensors)
            )
        optimizer = CrossShardOptimizer(training.make_optimizer())
        train_op = optimizer.minimize(loss, var_list=model.trainable_variables)
        return TPUEstimatorSpec(mode, predictions, loss, train_op)

    return model_fn


def _make_metric_fn(
    training: CompileArguments, metric_names: Mapping[str, str]
) -> MetricFn:
    """The `metric_fn` that counts what `compile` said."""

    def metric_fn(
        labels: Labels,
        outputs: Nest,
        weights: jax.Array | None,
        masks: Sequence[jax.Array | None],
    ) -> dict[str, tuple[jax.Array, jax.Array]]:
        outputs = _masked(outputs, masks)
        compiled = RecompiledModel(training)
        # For the losses of single outputs.
        compiled.compute_loss(None, labels, outputs, weights)
        results = compiled.compute_metrics(None, labels, outputs, weights)
        return {
            metric_names.get(name, name): (value, value)
            for name, value in results.items()
            if name != "loss"
        }

    return metric_fn


def _masks(outputs: Nest) -> list[jax.Array | None]:
    """The masks of a nest of tensors, which no copy of them has."""
    return [keras_internals.mask_of(each) for each in jax.tree.leaves(outputs)]


def _masked(outputs: Nest, masks: Sequence[jax.Array | None]) -> Nest:
    leaves, nest = jax.tree.flatten(outputs)
    return jax.tree.unflatten(
        nest, map(keras_internals.with_mask, leaves, masks)
    )


def _split(features: Features) -> tuple[Features, jax.Array | None]:
    """Features, and the weights of examples if there are any."""
    if isinstance(features, Mapping) and features.keys() == _WEIGHTED:
        return features["features"], features["sample_weights"]
    return features, None


def _inputs(model: keras.Model, features: Features) -> Features:
    """Features as the model takes them: the only one has any name."""
    inputs = getattr(model, "inputs", None) or ()
    takes_dict = isinstance(getattr(model, "input", None), Mapping)
    if len(inputs) != 1 or takes_dict or not isinstance(features, Mapping):
        return features
    if len(features) != 1:
        return features
    (only,) = features.values()
    return only


def _named(model: keras.Model, outputs: Nest) -> dict[str, jax.Array]:
    """Outputs by name."""
    if isinstance(outputs, Mapping):
        leaves = dict(outputs)
    else:
        tensors = outputs if isinstance(outputs, list | tuple) else [outputs]
        leaves = dict(zip(_names(model, tensors), tensors, strict=True))
    if len(leaves) != len(jax.tree.leaves(outputs)):
        raise ValueError(
            "The outputs of a Keras model should be a tensor, or a list or "
            "dict of tensors that each have a name of their own. Received: "
            f"{outputs!r}. Make a model whose outputs are a dict."
        )
    return leaves


def _names(model: keras.Model, tensors: Sequence[jax.Array]) -> list[str]:
    if isinstance(model, keras.Sequential):
        return [model.layers[-1].name]
    names = getattr(model, "output_names", None)
    return names or [f"output_{i}" for i, _ in enumerate(tensors, start=1)]
