"""A user's `model_fn` as an export calls it, and as a symbolic Keras model."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import keras

from keras_tpu_estimator.api.model_fn.export_outputs import (
    ExportOutput,
    PredictOutput,
    check_export_outputs,
    signature_outputs,
)
from keras_tpu_estimator.api.model_fn.spec import Spec, TPUEstimatorSpec
from keras_tpu_estimator.api.model_fn.spec_checks import metric_value
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree, TensorLike
from keras_tpu_estimator.base.tracing.jaxprs import place_of_error
from keras_tpu_estimator.base.tracing.variables import NoScopeError
from keras_tpu_estimator.base.upstream import keras_layers, keras_state
from keras_tpu_estimator.engine.program.bound_model_fn import SpecFunction
from keras_tpu_estimator.engine.program.steps import IS_PADDING
from keras_tpu_estimator.export.batching import BatchConfig, batching_requests


@dataclasses.dataclass(frozen=True)
class SignatureOutput:
    """The method of `ExportOutput`, and the program's output names by a signature's."""

    method: str
    names: Mapping[str, str]


class ServedModelFn:
    """A `model_fn` in any mode; the outputs of signatures become predictions.

    `features_inside` is the key of its features among the receivers' features and
    labels, or `None` if there are no labels. `signatures` and `batch_config` are those
    of the last call.
    """

    signatures: Mapping[str, SignatureOutput]
    batch_config: BatchConfig | None

    def __init__(self, model_fn: SpecFunction, mode: str, use_tpu: bool):
        self.model_fn = model_fn
        self.mode = mode
        self.embeddings = getattr(model_fn, "embeddings", None)
        self.features_inside = None if mode == ModeKeys.PREDICT else "features"
        self._use_tpu = use_tpu

    def __call__(
        self,
        features: Features,
        labels: Labels,
        mode: str,
        additional: Mapping[str, object],
    ) -> Spec:
        """Calls the user's function, as a program calls one to predict."""
        # The batch size is open, so `params` does not contain it.
        del labels, mode, additional
        spec, tensors = self.outputs_of(features)
        return TPUEstimatorSpec(
            ModeKeys.PREDICT, tensors, scaffold_fn=spec.make_scaffold
        )

    def outputs_of(self, features: Features) -> tuple[Spec, dict[str, Any]]:
        """Returns the spec of the user's function, and signatures' tensors by name."""
        labels = None
        if self.mode != ModeKeys.PREDICT:
            features, labels = features["features"], features.get("labels")
        with batching_requests() as requested:
            spec = self._called(features, labels)
        self.batch_config = requested[-1] if requested else None
        outputs = _outputs(self.mode, spec, self._metric_tensors)
        distinct = list({id(output): output for output in outputs.values()}.values())
        self.signatures = {
            signature: SignatureOutput(
                output.method,
                {name: f"{_index(distinct, output)}/{name}" for name in output.tensors},
            )
            for signature, output in outputs.items()
        }
        return spec, {
            f"{index}/{name}": tensor
            for index, output in enumerate(distinct)
            for name, tensor in output.tensors.items()
        }

    def _metric_tensors(self, spec: Spec) -> dict[str, Any]:
        """Returns the outputs of metrics in the signature of an evaluation."""
        return {
            f"metrics/{name}/value": metric_value(metric)
            for name, metric in spec.as_estimator_spec().eval_metric_ops.items()
        }

    def _called(self, features: Features, labels: Labels) -> Spec:
        try:
            return self.model_fn(
                features, labels, self.mode, {"use_tpu": self._use_tpu}
            )
        except KeyError as error:
            key = error.args[0] if error.args else None
            if key == "batch_size":
                raise ValueError(
                    "`model_fn` must not read params['batch_size'] in an export, "
                    "because requests have any size. Use the shape of a feature."
                ) from error
            if _is_missing(key, features):
                raise ValueError(
                    f"The serving input receiver must have the feature {key!r}, "
                    "which `model_fn` reads. Received: "
                    f"{sorted(map(str, features))}. Make the receiver return the "
                    "features of `input_fn`."
                ) from error
            raise
        except Exception as error:
            error.add_note(
                "This happened in an export. The features of the serving input "
                f"receiver were {features!r}."
            )
            raise


def _is_missing(key: Any, features: Features) -> bool:
    """Returns whether a `KeyError` is about a feature that no request has.

    Keras raises `KeyError` about numbers and objects, which name no feature.
    """
    if not isinstance(features, Mapping) or key in (*features, IS_PADDING):
        return False
    return isinstance(key, str) or type(key) in map(type, features)


def _outputs(
    mode: str,
    spec: Spec,
    metric_tensors: Callable[[Spec], dict[str, Any]],
) -> dict[str, ExportOutput]:
    if mode == ModeKeys.PREDICT:
        if spec.export_outputs is not None:
            check_export_outputs(spec.export_outputs, are_used=True)
        outputs = signature_outputs(spec.export_outputs, spec.predictions)
        if not any(output.tensors for output in outputs.values()):
            raise ValueError(
                "An export must have a signature. Received: `export_outputs` "
                f"{spec.export_outputs!r} and predictions "
                f"{spec.predictions!r}. Omit `export_outputs` to export "
                "all predictions, or add export.PredictOutput(tensors)."
            )
        return outputs
    tensors = {"loss": spec.loss}
    predictions = spec.predictions
    if isinstance(predictions, Mapping):
        tensors |= {f"predictions/{k}": v for k, v in predictions.items()}
    elif predictions is not None:
        tensors["predictions"] = predictions
    if mode == ModeKeys.EVAL:
        tensors |= metric_tensors(spec)
    return {mode: ExportOutput(PredictOutput(tensors).outputs, mode)}


def _index(outputs: list[ExportOutput], output: ExportOutput) -> int:
    return next(i for i, candidate in enumerate(outputs) if candidate is output)


def symbolic_model(
    call: SpecFunction,
    specs: PyTree,
    arrange: Callable[[PyTree], PyTree] = lambda inputs: inputs,
) -> keras.Model:
    """Calls `model_fn` in PREDICT with symbolic inputs, and returns a Keras model.

    The inputs have the names of the `FeatureSpec`s. `arrange` converts the pytree of
    inputs to the model's argument.
    """
    inputs = jax.tree.map(
        lambda spec: keras.Input(spec.shape[1:], dtype=spec.dtype.name, name=spec.name),
        specs,
    )
    try:
        with keras_state.fresh_names(), keras_layers.masks_kept():
            spec = call(inputs, None, ModeKeys.PREDICT, {"use_tpu": False})
            return keras.Model(arrange(inputs), spec.predictions)
    except NoScopeError as error:
        raise ValueError(
            "To become a Keras model, `model_fn` must use only Keras layers "
            "and keras.ops in mode 'infer'. Received: "
            f"`{error.caller}`{_user_line(error)}, "
            "for which neither Keras nor TensorFlow has an operation. Use "
            "export_saved_model with RunConfig(export_backend='jax'), or replace "
            "it by Keras layers."
        ) from error
    except Exception as error:
        raise ValueError(
            "To become a Keras model, `model_fn` must use only Keras layers "
            "and keras.ops in mode 'infer'. Received: "
            f"{type(error).__name__}{_user_line(error)}: {error} Put other "
            "functions into a keras.layers.Layer, or use export_saved_model "
            "with RunConfig(export_backend='jax')."
        ) from error


def _user_line(error: Exception) -> str:
    """Returns the last line of the user's code in an error's traceback."""
    source = place_of_error(error)
    return "" if source is None else f" at {source.line}"


def set_weights(model: keras.Model, values: Mapping[str, TensorLike]) -> None:
    """Assigns values by path to a symbolic model; each weight must have a value."""
    missing = [v.path for v in model.weights if v.path not in values]
    if missing:
        raise ValueError(
            "The Keras model must have the variables of the checkpoint, "
            f"{sorted(values)}. Received: other variables, {missing}. Give each "
            "layer a unique name."
        )
    for variable in model.variables:
        if variable.path in values:
            variable.assign(values[variable.path])
