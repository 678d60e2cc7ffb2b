"""What the `compile` of a Keras model said, to be said again elsewhere."""

import dataclasses
import json
import logging
from collections.abc import Mapping
from typing import Any

import keras

from keras_tpu_estimator.ground.base.shown import shortened
from keras_tpu_estimator.ground.tracing import keras_internals

_SETTINGS = ("run_eagerly", "steps_per_execution", "jit_compile")
_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True)
class CompileArguments:
    """What the `compile` of a model said.

    Attributes:
        output_names: Names of the model's outputs, or `None`.
        loss: As in `compile`, like the next three.
        loss_weights: See there.
        metrics: See there.
        weighted_metrics: See there.
        optimizer_class: The class of the optimizer.
        optimizer_config: Its config.
        settings: Other arguments of `compile` by name.
    """

    output_names: list[str] | None
    loss: Any
    loss_weights: Any
    metrics: Any
    weighted_metrics: Any
    optimizer_class: type[keras.optimizers.Optimizer]
    optimizer_config: Mapping[str, Any]
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, model: keras.Model) -> "CompileArguments":
        """What a compiled model was compiled with."""
        said = keras_internals.compile_arguments(model)
        return cls(
            output_names=getattr(model, "output_names", None),
            loss=said["loss"],
            loss_weights=said["loss_weights"],
            metrics=said["metrics"],
            weighted_metrics=said["weighted_metrics"],
            optimizer_class=type(model.optimizer),
            # Learning rates can be read only outside of a trace. An automatic
            # name counts the optimizers of a process: not so in checkpoints.
            optimizer_config={
                name: value
                for name, value in model.optimizer.get_config().items()
                if name != "name"
            },
            settings={name: said[name] for name in _SETTINGS if name in said},
        )

    def recompile(self, model: keras.Model) -> None:
        """Compiles a model like the one that these are of.

        If a file cannot contain all of it, the model has an optimizer and
        does not count as compiled, and the log says why.
        """
        with keras_internals.fresh_names():
            optimizer = self.make_optimizer()
        model.compile(
            optimizer,
            self.loss,
            loss_weights=self.loss_weights,
            metrics=_anew(self.metrics),
            weighted_metrics=_anew(self.weighted_metrics),
            **self.settings,
        )
        try:
            check_needs_no_package(optimizer)
            config = json.loads(json.dumps(model.get_compile_config()))
            keras.saving.deserialize_keras_object(config)
        except Exception as error:  # Anything in the user's classes.
            model.compiled = False
            _logger.warning(
                "The Keras model %r is not compiled, because a file cannot "
                "contain its optimizer, loss and metrics. Call `compile` where "
                "it is to be trained. %s: %s",
                model.name,
                type(error).__name__,
                shortened(str(error)),
            )
        optimizer.build(model.trainable_variables)

    def make_optimizer(self) -> keras.optimizers.Optimizer:
        """A new optimizer."""
        return self.optimizer_class.from_config(dict(self.optimizer_config))


def check_needs_no_package(optimizer: keras.optimizers.Optimizer) -> None:
    """Checks that Keras alone can make an optimizer.

    Raises:
        ValueError: Its class is one of this package.
    """
    package = __name__.partition(".")[0]
    if type(optimizer).__module__.partition(".")[0] == package:
        raise ValueError(
            "The optimizer must be one of Keras. Received: "
            f"{type(optimizer).__name__} of {package}."
        )


class RecompiledModel(keras.Model):
    """A model without layers, compiled anew, that has counted nothing yet."""

    def __init__(self, training: CompileArguments):
        super().__init__()
        if training.output_names is not None:
            self.output_names = training.output_names
        self.compile(
            optimizer=None,
            loss=training.loss,
            loss_weights=training.loss_weights,
            metrics=_anew(training.metrics),
            weighted_metrics=_anew(training.weighted_metrics),
        )


def _anew(metrics: Any) -> Any:
    """A nest of metrics with copies of those that count something."""
    return keras.tree.map_structure(
        lambda metric: (
            type(metric).from_config(metric.get_config())
            if isinstance(metric, keras.metrics.Metric)
            else metric
        ),
        metrics,
    )
