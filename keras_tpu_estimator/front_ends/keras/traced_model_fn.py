"""One call of `model_fn` on one replica's tensors, under a trace."""

import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import keras
import numpy as np

from keras_tpu_estimator.api.model_fn import cross_shard_optimizer
from keras_tpu_estimator.api.model_fn.scaffold import Scaffold
from keras_tpu_estimator.api.model_fn.spec import EstimatorSpec
from keras_tpu_estimator.api.model_fn.spec_checks import metric_value
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.base.mesh import replica_context
from keras_tpu_estimator.base.mesh.replica_context import Specs
from keras_tpu_estimator.base.tracing import foreign_calls
from keras_tpu_estimator.base.tracing.identity import names_collected
from keras_tpu_estimator.base.tracing.variables import ArraysByPath
from keras_tpu_estimator.base.upstream import keras_devices, keras_models
from keras_tpu_estimator.engine.program import steps
from keras_tpu_estimator.engine.program.bound_model_fn import SpecFunction, TraceOptions
from keras_tpu_estimator.engine.program.steps import (
    FEATURE_GRADIENTS,
    NAMED,
    SUMMARIES,
    Outputs,
    Step,
    StepFunction,
    StepInput,
)
from keras_tpu_estimator.files.summary import recording
from keras_tpu_estimator.files.summary.collecting import Collector
from keras_tpu_estimator.front_ends.keras import (
    batch_normalization,
    layer_checks,
    long_attention,
)
from keras_tpu_estimator.front_ends.keras.padded_features import PaddedFeatures


class TracedModelFn:
    """A `model_fn`, called with the inputs of a step, and results that are not tensors.

    Attributes:
        micro_batches: The number of parts into which each replica divides its
            batch.
        padded: The features of the last call, if they contain which rows are
            padding, as dicts do in PREDICT.
        tells_padding: Whether features may contain padding.
        named: The names that the last call gave to tensors.
        policies: The names of the dtype policies of the layers that it called.
    """

    spec: Any
    named: tuple[str, ...] = ()

    def __init__(
        self,
        call_model_fn: SpecFunction,
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
        self.policies: set[str] = set()
        self._outputs_split: dict[str, Any] = {}

    def __call__(self, features: Features, labels: Labels) -> Outputs:
        """Calls `model_fn`; returns the tensors that leave the device."""
        training = self.mode == ModeKeys.TRAIN
        is_padding = None
        if self.mode == ModeKeys.PREDICT:
            labels, is_padding = None, labels
        features, labels = self.example.arranged(features, labels)
        self.padded = None
        if self.tells_padding and isinstance(features, dict):
            features = self.padded = PaddedFeatures(features, is_padding)
        collector = Collector(self._records)
        with (
            replica_context.replica_scope(self.example.cores.context),
            keras_devices.on_platform(self.example.cores.platform),
            long_attention.attention_on(self.example.cores),
            self.options.scope(),
            layer_checks.layers_checked(self.policies, warns=training),
            batch_normalization.synchronizing(self.options.synchronize_batch_norm),
            recording.only_to(collector),
            names_collected() as named,
            foreign_calls.rejected(),
            cross_shard_optimizer.explained(),
        ):
            self.spec = self._call_model_fn(
                features, labels, self.mode, self._additional()
            )
        self.named = tuple(named)
        outputs = {
            name: self.options.outputs(_as_tensors(tensors))
            for name, tensors in self._outputs().items()
        }
        steps.check_concatenable(outputs, self.example, np.ndim, self.micro_batches)
        split = self.example.is_split
        self._outputs_split = dict(steps.splits(outputs, split))
        mean = self.example.cores.mean
        outputs[SUMMARIES] = [s.of_cores(mean) for s in collector.collected]
        self._outputs_split[SUMMARIES] = [
            summary.split(split) for summary in outputs[SUMMARIES]
        ]
        outputs[NAMED] = self._named(named)
        self._outputs_split[NAMED] = {
            name: split and tensor.ndim > 0 for name, tensor in outputs[NAMED].items()
        }
        return outputs

    def _additional(self) -> dict[str, Any]:
        """Returns the entries of `params` besides the user's own values."""
        additional = self.example.additional
        return {
            **additional,
            "batch_size": additional["batch_size"] // self.micro_batches,
        }

    def on_cores(
        self,
        per_core: Callable[
            [ArraysByPath, Features, Labels], tuple[ArraysByPath, Outputs]
        ],
        same: Mapping[str, PyTree] = types.MappingProxyType({}),
        reads: Specs | None = None,
        changes: Specs | None = None,
    ) -> StepFunction:
        """Returns a function of all replicas from one of a single replica, whose values
        are equal on all replicas.

        Args:
            same: The sharding of its outputs besides those of `model_fn`, by
                name, as `outputs_split` of `Cores.per_core`.
            reads: The variables that `per_core` reads, by path, with how
                they are sharded over the replicas. Defaults to `None`, for all
                variables, replicated.
            changes: The same for the values that it returns.
        """
        split, cores = self.example.is_split, self.example.cores
        share = self.example.sharing()

        def of_parts(
            values: ArraysByPath, features: Features, labels: Labels
        ) -> tuple[ArraysByPath, Outputs]:
            return per_core(values, *share(features, labels))

        outputs_split = {**self._outputs_split, **same}
        if self.example.differentiated:
            outputs_split[FEATURE_GRADIENTS] = split
        mapped = cores.per_core(
            of_parts,
            split=(False if reads is None else reads, split, split),
            outputs_split=(False if changes is None else changes, outputs_split),
        )
        if reads is None:
            return mapped
        return lambda values, features, labels: mapped(
            {path: values[path] for path in reads}, features, labels
        )

    def step(
        self,
        function: StepFunction,
        reads: Iterable[str],
        assigned: Iterable[str],
        is_grouped: bool = False,
    ) -> Step:
        """Makes a step of a function of all replicas."""
        return Step(
            mode=self.mode,
            function=function,
            reads=tuple(reads),
            assigned=tuple(assigned),
            metric_fn=steps.metrics_of(self.spec, self.mode),
            host_call=self.spec.host_call,
            hooks=self.spec.hooks,
            scaffold=self._scaffold(),
            named=frozenset(self._outputs_split[NAMED]),
            is_grouped=is_grouped,
            records=bool(self._outputs_split[SUMMARIES]),
            directions=keras_models.directions_of(self._metric_ops()),
        )

    def _scaffold(self) -> Scaffold:
        scaffold = self.spec.make_scaffold()
        if self.mode == ModeKeys.TRAIN and scaffold.variables_to_restore:
            raise ValueError(
                "`variables_to_restore` must be None in mode 'train', because it is "
                f"for evaluation and prediction. Received: {scaffold.sources}. To "
                "start training from other values, use init_from_checkpoint."
            )
        return scaffold

    def _outputs(self) -> Outputs:
        outputs = steps.outputs_of(self.spec, self.mode, lambda host: host.fed)
        if self._metric_ops():
            outputs["metric_values"] = {
                name: metric_value(metric)
                for name, metric in self._metric_ops().items()
            }
        return outputs

    def _metric_ops(self) -> Mapping[str, Any]:
        """Returns the metrics that the program itself computes, by name."""
        if self.mode == ModeKeys.EVAL and isinstance(self.spec, EstimatorSpec):
            ops: Mapping[str, Any] = self.spec.eval_metric_ops
            return ops
        return {}

    def _named(self, named: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Returns the tensors that hooks can fetch: named ones and predictions."""
        predictions = self.spec.predictions
        if self.mode == ModeKeys.PREDICT or not isinstance(predictions, Mapping):
            predictions = {}
        tensors: dict[str, jax.Array] = self.options.outputs(
            _as_tensors({**predictions, **named})
        )
        return tensors


def _as_tensors(tree: PyTree) -> PyTree:
    return jax.tree.map(
        keras.ops.convert_to_tensor,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, keras.Variable),
    )
