"""One call of `model_fn` on one core's tensors, under a trace."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import jax
import keras

from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.base.types import Features
from keras_tpu_estimator.base.types import Labels
from keras_tpu_estimator.base.types import Nest
from keras_tpu_estimator.keras_program.padded_features import PaddedFeatures
from keras_tpu_estimator.mesh import replica_context
from keras_tpu_estimator.model_fn.scaffold import Scaffold
from keras_tpu_estimator.model_fn.spec import EstimatorSpec
from keras_tpu_estimator.model_fn.spec_checks import HostFunction
from keras_tpu_estimator.model_fn.spec_checks import metric_value
from keras_tpu_estimator.program.bound_model_fn import CallModelFn
from keras_tpu_estimator.program.options import TraceOptions
from keras_tpu_estimator.program.steps import FEATURE_GRADIENTS
from keras_tpu_estimator.program.steps import NAMED
from keras_tpu_estimator.program.steps import SAME_ON_ALL_CORES
from keras_tpu_estimator.program.steps import SUMMARIES
from keras_tpu_estimator.program.steps import Outputs
from keras_tpu_estimator.program.steps import Step
from keras_tpu_estimator.program.steps import StepFunction
from keras_tpu_estimator.program.steps import StepInput
from keras_tpu_estimator.summary import recording
from keras_tpu_estimator.summary.collecting import Collector
from keras_tpu_estimator.tracing import keras_internals
from keras_tpu_estimator.tracing import leftovers
from keras_tpu_estimator.tracing.identity import names_collected
from keras_tpu_estimator.tracing.moments import in_one_pass
from keras_tpu_estimator.tracing.variables import Values


class ModelCall:
    """Runs a `model_fn` and keeps what it said besides tensors.

    Args:
        call_model_fn: Called with features, labels, mode and the additional
            `params`; returns a spec.
        mode: A value of `ModeKeys`.
        example: What a step is given.
        options: How it is traced.

    Attributes:
        micro_batches: Into how many parts each core cuts its batch.
        spec: What the last call returned.
        padded: The features that the last call was given, if they tell which
            rows are padding: dicts do in PREDICT.
        tells_padding: Whether they may.
        named: The names that it gave to tensors.
    """

    spec: Any
    named: tuple[str, ...] = ()

    def __init__(
        self,
        call_model_fn: CallModelFn,
        mode: str,
        example: StepInput,
        options: TraceOptions,
    ):
        self.mode = mode
        self.example = example
        self.options = options
        training = mode == ModeKeys.TRAIN
        self.micro_batches = options.micro_batches if training else 1
        self._call_model_fn = call_model_fn
        self._records = options.records and mode != ModeKeys.PREDICT
        self.padded: PaddedFeatures | None = None
        self.tells_padding = mode == ModeKeys.PREDICT
        self._outputs_split: dict[str, Any] = {}

    def __call__(self, features: Features, labels: Labels) -> Outputs:
        """Calls `model_fn`; returns the tensors that leave the device."""
        in_one_pass()
        is_padding = None
        if self.mode == ModeKeys.PREDICT:
            labels, is_padding = None, labels
        if self.example.arrange is not None:
            features, labels = self.example.arrange(features, labels)
        self.padded = None
        if self.tells_padding and isinstance(features, dict):
            features = self.padded = PaddedFeatures(features, is_padding)
        collector = Collector(self._records)
        with (
            replica_context.replica_scope(self.example.cores.context),
            keras_internals.on_platform(self.example.cores.platform),
            self.options.scope(),
            recording.only_to(collector),
            names_collected() as named,
            leftovers.refused(),
        ):
            self.spec = self._call_model_fn(
                features, labels, self.mode, self._additional()
            )
        self.named = tuple(named)
        outputs = {
            name: self.options.outputs(_as_tensors(tensors))
            for name, tensors in self._outputs().items()
        }
        self._check_concatenable(outputs)
        split = self.example.is_split
        self._outputs_split = {
            name: split and name not in SAME_ON_ALL_CORES for name in outputs
        }
        mean = self.example.cores.mean
        outputs[SUMMARIES] = [s.of_cores(mean) for s in collector.collected]
        self._outputs_split[SUMMARIES] = [
            each.split(split) for each in outputs[SUMMARIES]
        ]
        outputs[NAMED] = self._named(named)
        self._outputs_split[NAMED] = {
            name: split and tensor.ndim > 0
            for name, tensor in outputs[NAMED].items()
        }
        return outputs

    def _additional(self) -> dict[str, Any]:
        """What `params` holds besides the user's own values."""
        own = self.example.additional
        return {**own, "batch_size": own["batch_size"] // self.micro_batches}

    def on_cores(
        self,
        per_core: Callable[[Values, Features, Labels], tuple[Values, Outputs]],
        *same: str,
    ) -> StepFunction:
        """What each core does as what all of them do.

        Args:
            per_core: Returns values that are equal on all cores, and outputs.
            *same: Names of its outputs that are equal on all, too, besides
                those that `model_fn` says.
        """
        split, cores = self.example.is_split, self.example.cores
        share = self.example.sharing()

        def of_parts(
            values: Values, features: Features, labels: Labels
        ) -> tuple[Values, Outputs]:
            return per_core(values, *share(features, labels))

        outputs_split = {**self._outputs_split, **dict.fromkeys(same, False)}
        if self.example.differentiated:
            outputs_split[FEATURE_GRADIENTS] = split
        return cores.per_core(
            of_parts,
            split=(False, split, split),
            outputs_split=(False, outputs_split),
        )

    def step(
        self,
        function: StepFunction,
        reads: Iterable[str],
        assigned: Iterable[str],
        is_grouped: bool = False,
    ) -> Step:
        """Makes a step of what all cores do."""
        return Step(
            mode=self.mode,
            function=function,
            reads=tuple(sorted(reads)),
            assigned=tuple(sorted(assigned)),
            metric_fn=self._metric_fn(),
            host_call=self.spec.host_call,
            hooks=self.spec.hooks,
            scaffold=self._scaffold(),
            named=frozenset(self._outputs_split[NAMED]),
            is_grouped=is_grouped,
        )

    def _metric_fn(self) -> HostFunction | None:
        training = self.mode == ModeKeys.TRAIN
        name = "train_metrics" if training else "eval_metrics"
        return getattr(self.spec, name, None)

    def _scaffold(self) -> Scaffold:
        scaffold = self.spec.make_scaffold()
        if self.mode == ModeKeys.TRAIN and scaffold.variables_to_restore:
            raise ValueError(
                "`variables_to_restore` is for evaluation and prediction. "
                "Expected None in mode 'train'. Received: "
                f"{scaffold.sources}. To start training from other values, "
                "use init_from_checkpoint."
            )
        return scaffold

    def _outputs(self) -> Outputs:
        spec = self.spec
        outputs: Outputs = {}
        if self.mode == ModeKeys.PREDICT:
            outputs["predictions"] = spec.predictions
        else:
            outputs["loss"] = spec.loss
        if self.mode == ModeKeys.EVAL and isinstance(spec, EstimatorSpec):
            outputs["metric_values"] = {
                name: metric_value(metric)
                for name, metric in spec.eval_metric_ops.items()
            }
        elif self.mode == ModeKeys.EVAL and spec.eval_metrics:
            outputs["eval_metrics"] = spec.eval_metrics.fed
        if self.mode == ModeKeys.TRAIN and spec.train_metrics:
            outputs["train_metrics"] = spec.train_metrics.fed
        if spec.host_call:
            outputs["host_call"] = spec.host_call.fed
        return outputs

    def _named(self, named: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """What hooks may fetch: named tensors, and predictions."""
        predictions = self.spec.predictions
        if self.mode == ModeKeys.PREDICT or not isinstance(
            predictions, Mapping
        ):
            predictions = {}
        tensors = self.options.outputs(_as_tensors({**predictions, **named}))
        return {
            name: tensor if tensor.ndim else self._of_cores(tensor)
            for name, tensor in tensors.items()
        }

    def _of_cores(self, scalar: jax.Array) -> jax.Array:
        cores = self.example.cores
        if keras.backend.is_float_dtype(scalar.dtype):
            return cores.mean(scalar)
        return cores.of_first(scalar)

    def _check_concatenable(self, outputs: Outputs) -> None:
        # On one core, too, lest a program works on a single one only.
        split = self.example.additional["use_tpu"] and self.example.is_split
        if not split and self.micro_batches == 1:
            return
        for name, tensors in outputs.items():
            for path, leaf in jax.tree_util.tree_leaves_with_path(tensors):
                if leaf.ndim == 0 and name not in SAME_ON_ALL_CORES:
                    raise RuntimeError(
                        f"The tensors of `{name}` are concatenated over cores "
                        "and micro-batches along their first axis, so each "
                        "should have one. Received a scalar at "
                        f"{jax.tree_util.keystr(path)}: reshape it to [1]."
                    )


def _as_tensors(nest: Nest) -> Nest:
    return jax.tree.map(
        keras.ops.convert_to_tensor,
        nest,
        is_leaf=lambda leaf: isinstance(leaf, keras.Variable),
    )
