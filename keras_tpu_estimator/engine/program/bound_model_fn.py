"""The contract of a user's `model_fn`: what it is given, what it may return."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from keras_tpu_estimator.engine.program.explaining import explained
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.params import copied, with_additional
from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.signatures import argument_names
from keras_tpu_estimator.ground.base.types import Features, Labels
from keras_tpu_estimator.spec.model_fn import cross_shard_optimizer
from keras_tpu_estimator.spec.model_fn.spec import EstimatorSpec, Spec, TPUEstimatorSpec

SpecFunction: TypeAlias = Callable[[Features, Labels, str, Mapping[str, Any]], Spec]

_ARGUMENTS = ("features", "labels", "mode", "params", "config", "self")


def check_signature(model_fn: object, has_params: bool) -> Callable[..., Any]:
    """Checks the arguments that a `model_fn` declares, and returns it.

    Raises:
        TypeError: It is not callable.
        ValueError: It takes no `features`, no `params` though there are some,
            or arguments that nothing gives it.
    """
    if not callable(model_fn):
        raise TypeError(
            f"Expected a callable as `model_fn`. Received: {shown(model_fn)}"
        )
    names = argument_names(model_fn)
    if "features" not in names:
        raise ValueError(
            "`model_fn` should take an argument `features`. Received a "
            f"function of {list(names)}."
        )
    if has_params and "params" not in names:
        raise ValueError(
            "`params` were given, but `model_fn` does not take them. Received "
            f"a function of {list(names)}. Add an argument `params` to it."
        )
    unexpected = sorted(set(names) - set(_ARGUMENTS))
    if unexpected:
        raise ValueError(
            f"`model_fn` has arguments that nothing gives it: {unexpected}. "
            "Expected some of features, labels, mode, params and config. Pass "
            "other values in `params`, or bind them with functools.partial "
            "and keep them out of the signature."
        )
    return model_fn


@dataclasses.dataclass(frozen=True)
class BoundModelFn:
    """A user's `model_fn` with everything but the data bound to it.

    Attributes:
        params: The user's hyperparameters.
        checks_params: Whether `model_fn` must take `params`.
        embeddings: The `EmbeddingConfigSpec` whose activations it is given, or
            `None`.
    """

    function: Callable[..., Any]
    params: Any
    config: Any
    checks_params: bool = True
    embeddings: Any = None

    def __call__(
        self,
        features: Features,
        labels: Labels,
        mode: str,
        additional: Mapping[str, Any],
    ) -> Spec:
        """Calls the user's function.

        Args:
            labels: Nest of tensors, or `None`.
            additional: What `params` holds besides the user's own values;
                with its `use_tpu`, specs must be `TPUEstimatorSpec`s.

        Raises:
            ValueError: It does not take what it must, or returned no spec.
            RuntimeError: It returned an `EstimatorSpec` where several cores
                need a `TPUEstimatorSpec`.
            TypeError: Predictions on cores are no dict.
            AttributeError: It calls a method of TensorFlow's optimizers.
        """
        names = argument_names(self.function)
        kwargs: dict[str, Any] = {}
        if "labels" in names:
            kwargs["labels"] = labels
        elif labels is not None and mode != ModeKeys.PREDICT:
            raise ValueError(
                "`model_fn` does not take labels, but the input has labels. "
                "Add an argument `labels`, or return features alone from "
                "`input_fn`."
            )
        if "params" in names:
            kwargs["params"] = with_additional(self.params, additional)
        elif self.checks_params:
            raise ValueError(
                "`model_fn` should take an argument `params`: TPUEstimator "
                "passes the batch size of one core in params['batch_size']. "
                f"Received a function of {list(names)}."
            )
        if "mode" in names:
            kwargs["mode"] = mode
        if "config" in names:
            kwargs["config"] = copied(self.config)
        with (
            explained(features, labels, kwargs.get("params")),
            cross_shard_optimizer.explained(),
        ):
            spec = self.function(features=features, **kwargs)
        return self._checked(spec, mode, additional["use_tpu"])

    def _checked(self, spec: object, mode: str, use_tpu: bool) -> Spec:
        if not isinstance(spec, TPUEstimatorSpec | EstimatorSpec):
            raise ValueError(
                "`model_fn` should return a TPUEstimatorSpec or an "
                f"EstimatorSpec. Received: {shown(spec)}"
            )
        if not use_tpu:
            return spec
        if mode == ModeKeys.TRAIN:
            chief_hooks = getattr(spec, "training_chief_hooks", ())
            if chief_hooks:
                raise ValueError(
                    "`training_chief_hooks` are not supported with "
                    f"use_tpu=True. Received: {chief_hooks}. "
                    "Use `training_hooks`."
                )
            return spec
        if isinstance(spec, EstimatorSpec):
            raise RuntimeError(
                f"In mode {mode!r} with use_tpu=True `model_fn` should return "
                "a TPUEstimatorSpec. Received an EstimatorSpec: return "
                "TPUEstimatorSpec(..., eval_metrics=(metric_fn, tensors)) "
                "instead."
            )
        if mode == ModeKeys.PREDICT and not isinstance(spec.predictions, Mapping):
            raise TypeError(
                "With use_tpu=True predictions should be a dict of tensors. "
                f"Received: {type(spec.predictions).__name__}. Give the "
                "tensor a name: predictions={'output': tensor}."
            )
        return spec
