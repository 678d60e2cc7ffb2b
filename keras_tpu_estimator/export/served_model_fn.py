"""A user's `model_fn` as an export calls it: for its signatures' outputs."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from keras_tpu_estimator.engine.program.bound_model_fn import SpecFunction
from keras_tpu_estimator.engine.program.steps import IS_PADDING
from keras_tpu_estimator.export.batching import BatchConfig, batching_requests
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.types import Features, Labels
from keras_tpu_estimator.spec.model_fn.export_outputs import (
    ExportOutput,
    PredictOutput,
    check_export_outputs,
    signature_outputs,
)
from keras_tpu_estimator.spec.model_fn.spec import Spec, TPUEstimatorSpec
from keras_tpu_estimator.spec.model_fn.spec_checks import metric_value


@dataclasses.dataclass(frozen=True)
class SignatureOutput:
    """The outputs of one signature, as names among a program's outputs.

    Attributes:
        method: As in `ExportOutput`.
        names: From the output's name to that of the program's output.
    """

    method: str
    names: Mapping[str, str]


class ServedModelFn:
    """Calls `model_fn` in any mode; all outputs of signatures are predictions.

    Args:
        model_fn: The user's function.
        mode: The mode it is called in.
        use_tpu: The value of `params["use_tpu"]`.

    Attributes:
        mode: The mode it is called in.
        embeddings: The tables of the user's function, or `None`.
        features_inside: Where its features are among what receivers give,
            labels among them; `None` if that is all.
        signatures: What the last call's signatures return.
        batch_config: What that call asked for, or `None`.
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
        # Batches have any size here, so `params` says nothing about it.
        del labels, mode, additional
        spec, tensors = self.outputs_of(features)
        return TPUEstimatorSpec(
            ModeKeys.PREDICT, tensors, scaffold_fn=spec.make_scaffold
        )

    def outputs_of(self, features: Features) -> tuple[Spec, dict[str, Any]]:
        """Calls the user's function.

        Args:
            features: What receivers give.

        Returns:
            The spec, and the tensors that signatures return, by name.
        """
        labels = None
        if self.mode != ModeKeys.PREDICT:
            features, labels = features["features"], features["labels"]
        with batching_requests() as requested:
            spec = self._called(features, labels)
        self.batch_config = requested[-1] if requested else None
        outputs = _outputs(self.mode, spec, self._metric_tensors)
        distinct = list({id(each): each for each in outputs.values()}.values())
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
        """What the signature of an evaluation returns of its metrics."""
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
                    "`model_fn` reads params['batch_size'], which an exported "
                    "model does not have: its requests have any size. Use the "
                    "shape of a feature."
                ) from error
            if isinstance(features, Mapping) and key not in (
                *features,
                IS_PADDING,
            ):
                raise ValueError(
                    f"`model_fn` reads {key!r}, which the serving input "
                    "receiver does not give it. Received features: "
                    f"{sorted(map(str, features))}. Make the features of the "
                    "receiver those of `input_fn`."
                ) from error
            raise
        except Exception as error:
            error.add_note(
                "This happened in an export. The features of the serving input "
                f"receiver were {features!r}."
            )
            raise


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
                "An export should have a signature. Received `export_outputs` "
                f"{spec.export_outputs!r} and predictions "
                f"{spec.predictions!r}. Leave `export_outputs` out to export "
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
    return next(i for i, each in enumerate(outputs) if each is output)
