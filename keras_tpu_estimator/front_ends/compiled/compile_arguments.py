"""The `compile` arguments of a Keras model that is made again."""

import dataclasses
import json
import logging
from collections.abc import Mapping
from typing import Any

import keras

from keras_tpu_estimator.base.common.shown import shortened
from keras_tpu_estimator.base.upstream import keras_models, keras_state

_SETTINGS = ("run_eagerly", "steps_per_execution", "jit_compile")
_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True)
class CompileArguments:
    """The `compile` arguments of a model."""

    output_names: list[str] | None
    loss: Any
    loss_weights: Any
    metrics: Any
    weighted_metrics: Any
    optimizer_class: type[keras.optimizers.Optimizer]
    optimizer_config: Mapping[str, Any]
    settings: Mapping[str, Any]

    @classmethod
    def from_model(cls, model: keras.Model) -> "CompileArguments":
        """Returns the `compile` arguments of a compiled model."""
        arguments = keras_models.compile_arguments(model)
        return cls(
            output_names=getattr(model, "output_names", None),
            loss=arguments["loss"],
            loss_weights=arguments["loss_weights"],
            metrics=arguments["metrics"],
            weighted_metrics=arguments["weighted_metrics"],
            optimizer_class=type(model.optimizer),
            # Learning rates can only be read outside of a trace. An automatic
            # name counts the optimizers of a process, which would differ in
            # checkpoints.
            optimizer_config={
                name: value
                for name, value in model.optimizer.get_config().items()
                if name != "name"
            },
            settings={name: arguments[name] for name in _SETTINGS if name in arguments},
        )

    def recompile(self, model: keras.Model) -> None:
        """Compiles a model with these arguments; if a file cannot contain all of them,
        it warns with the reason, and the model has an optimizer but is not compiled.
        """
        with keras_state.fresh_names():
            optimizer = self.make_optimizer()
        model.compile(
            optimizer,
            self.loss,
            loss_weights=self.loss_weights,
            metrics=_new_copies(self.metrics),
            weighted_metrics=_new_copies(self.weighted_metrics),
            **self.settings,
        )
        try:
            check_needs_no_package(optimizer)
            config = json.loads(json.dumps(model.get_compile_config()))
            keras.saving.deserialize_keras_object(config)
        except Exception as error:  # Any error in the user's classes.
            model.compiled = False
            _logger.warning(
                "The Keras model %r is not compiled, because a file cannot "
                "contain its optimizer, loss and metrics. Call `compile` "
                "before you train it. %s: %s",
                model.name,
                type(error).__name__,
                shortened(str(error)),
            )
        optimizer.build(model.trainable_variables)

    def make_optimizer(self) -> keras.optimizers.Optimizer:
        """Returns a new optimizer."""
        return self.optimizer_class.from_config(dict(self.optimizer_config))


def check_needs_no_package(optimizer: keras.optimizers.Optimizer) -> None:
    """Checks that Keras without this package can create an optimizer."""
    package = __name__.partition(".")[0]
    if type(optimizer).__module__.partition(".")[0] == package:
        raise ValueError(
            "The optimizer must be one of Keras. Received: "
            f"{type(optimizer).__name__} of {package}."
        )


class RecompiledModel(keras.Model):
    """A model without layers, compiled with new metrics."""

    def __init__(self, training: CompileArguments):
        super().__init__()
        if training.output_names is not None:
            self.output_names = training.output_names
        self.compile(
            optimizer=None,
            loss=training.loss,
            loss_weights=training.loss_weights,
            metrics=_new_copies(training.metrics),
            weighted_metrics=_new_copies(training.weighted_metrics),
        )


def _new_copies(metrics: Any) -> Any:
    """Returns a pytree of metrics with new copies of stateful ones."""
    return keras.tree.map_structure(
        lambda metric: (
            type(metric).from_config(metric.get_config())
            if isinstance(metric, keras.metrics.Metric)
            else metric
        ),
        metrics,
    )
