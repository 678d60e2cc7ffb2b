"""What the `compile` of a Keras model said, to be said again elsewhere."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras

from keras_tpu_estimator.ground.tracing import keras_internals


@dataclasses.dataclass(frozen=True)
class CompileArguments:
    """What the `compile` of a model said.

    Attributes:
        output_names: Names of the model's outputs, or `None`.
        loss: As in `compile`, like the next three.
        loss_weights: See there.
        metrics: See there.
        weighted_metrics: See there.
    """

    output_names: list[str] | None
    loss: Any
    loss_weights: Any
    metrics: Any
    weighted_metrics: Any
    optimizer_class: type[keras.optimizers.Optimizer]
    optimizer_config: Mapping[str, Any]

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
        )

    def make_optimizer(self) -> keras.optimizers.Optimizer:
        """A new optimizer."""
        return self.optimizer_class.from_config(dict(self.optimizer_config))


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
