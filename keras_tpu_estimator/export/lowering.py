"""A `model_fn` with a checkpoint's values, as a module that TensorFlow runs."""

import dataclasses
import logging
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.export import shapes
from keras_tpu_estimator.export import stablehlo
from keras_tpu_estimator.export.batching import BatchConfig
from keras_tpu_estimator.export.served_model_fn import ServedModelFn
from keras_tpu_estimator.export.served_model_fn import SignatureOutput
from keras_tpu_estimator.export.shapes import FeatureSpec
from keras_tpu_estimator.model import EstimatorModel
from keras_tpu_estimator.modes import ModeKeys
from keras_tpu_estimator.program.model_fn import ModelFn
from keras_tpu_estimator.program.options import TraceOptions
from keras_tpu_estimator.program.program import Program
from keras_tpu_estimator.program.steps import Feed
from keras_tpu_estimator.program.steps import Step
from keras_tpu_estimator.program.steps import batch_size
from keras_tpu_estimator.runtime import Runtime

_logger = logging.getLogger("keras_tpu_estimator")
_PLATFORMS = ("cpu", "cuda", "tpu")


@dataclasses.dataclass(frozen=True)
class Trial:
    """Inputs to try an exported model with, and what JAX makes of them.

    Attributes:
        features: The flat features.
        outputs: The flat outputs.
    """

    features: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True)
class LoweredModel:
    """A model for any platform and, where the features allow, any batch size.

    Attributes:
        exported: What JAX exported.
        module: Its module, as TensorFlow can read it.
        values: Values of the variables by path, in the order of arguments.
        outputs: The nest of the program's outputs.
        signatures: What each signature returns.
        batch_config: How requests are put together, or `None`.
        trial: How the model can be checked.
    """

    exported: jax.export.Exported
    module: bytes
    values: Mapping[str, np.ndarray]
    outputs: Any
    signatures: Mapping[str, SignatureOutput]
    batch_config: BatchConfig | None
    trial: Trial

    def call(self, variables: Sequence[Any], features: Sequence[Any]) -> Any:
        """Calls the model with TensorFlow's tensors.

        Args:
            variables: The variables, in the order of `values`.
            features: The flat features.

        Returns:
            The flat outputs.
        """
        import tensorflow as tf

        # What JAX's own `jax2tf` calls; `tf.raw_ops` does not have the op.
        from tensorflow.compiler.tf2xla.python import xla

        avals = self.exported.out_avals
        shapes = [
            [size if isinstance(size, int) else None for size in aval.shape]
            for aval in avals
        ]

        def run(*features: Any) -> Any:
            return xla.call_module(
                [*variables, *features],
                version=self.exported.calling_convention_version,
                module=self.module,
                Tout=[aval.dtype for aval in avals],
                Sout=shapes,
                platforms=[name.upper() for name in self.exported.platforms],
                disabled_checks=[],
                has_token_input_output=False,
                function_list=[],
                use_shardy_partitioner=False,
            )

        if self.batch_config is not None:
            run = self.batch_config.batched(run)
        dtypes = [spec.dtype for spec in self.exported.in_avals]
        results = run(
            *(
                tf.cast(feature, dtype)
                for feature, dtype in zip(
                    features, dtypes[len(variables) :], strict=True
                )
            )
        )
        return [
            tf.ensure_shape(result, shape)
            for result, shape in zip(results, shapes, strict=True)
        ]


def lower(
    model_fn: ModelFn,
    mode: str,
    use_tpu: bool,
    checkpoint: str,
    features: Any,
    seed: int | None = None,
) -> LoweredModel:
    """Lowers a model with the values of a checkpoint.

    Args:
        model_fn: The user's function.
        mode: The mode it is called in.
        use_tpu: The value of `params["use_tpu"]`.
        checkpoint: The prefix of the checkpoint.
        features: Nest of `FeatureSpec`s.
        seed: As in a `Program`.

    Raises:
        ValueError: The model does not fit the features, the checkpoint or
            TensorFlow.
    """
    specs, nest = jax.tree.flatten(features)
    served = ServedModelFn(model_fn, mode, use_tpu)
    options = TraceOptions.of(model_fn.config)
    options = dataclasses.replace(options, records=False)
    program = Program(served, seed, options)
    model = EstimatorModel(program, {ModeKeys.PREDICT: Feed()})
    trial = shapes.samples(specs)
    step = model.prepare(
        ModeKeys.PREDICT, *_inputs(jax.tree.unflatten(nest, trial))
    )
    try:
        loaded = Runtime(model).load(step, checkpoint)
    except ValueError as error:
        raise ValueError(f"In mode {mode!r}: {error}") from error
    paths = [path for path in step.reads if path not in step.local]
    values = {path: np.asarray(loaded[path]) for path in paths}
    local = {path: np.asarray(loaded[path]) for path in step.local}
    expected = _run_on_host(_function(step, nest, local), values, trial)
    exported, outputs = _exported(program, specs, nest, values, local)
    return LoweredModel(
        exported=exported,
        module=stablehlo.for_tensorflow(exported.mlir_module_serialized),
        values=values,
        outputs=outputs,
        signatures=served.signatures,
        batch_config=served.batch_config,
        trial=Trial(trial, expected),
    )


def _inputs(features: Any) -> tuple[Any, Any]:
    """Features, and that none of their rows is padding."""
    return features, jnp.zeros((batch_size(features),), bool)


def _function(step: Step, nest: Any, local: Mapping[str, Any]) -> Any:
    """A step as a function of the variables' values and flat features."""

    def function(values: Mapping[str, Any], features: Sequence[Any]) -> Any:
        inputs = _inputs(jax.tree.unflatten(nest, features))
        _, outputs = step.function({**values, **local}, *inputs)
        return outputs["predictions"]

    return function


def _run_on_host(
    function: Any, values: Mapping[str, Any], features: Sequence[Any]
) -> list[np.ndarray]:
    """The flat outputs, computed on the CPU if JAX can."""
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        device = jax.local_devices()[0]
    with jax.default_device(device):
        outputs = jax.jit(function)(values, features)
    return [np.asarray(output) for output in jax.tree.leaves(outputs)]


def _exported(
    program: Program,
    specs: Sequence[FeatureSpec],
    nest: Any,
    values: Mapping[str, np.ndarray],
    local: Mapping[str, Any],
) -> tuple[jax.export.Exported, Any]:
    """Exports for the most general shapes that the model can be traced with.

    Returns:
        What was exported, and the structure of its outputs.
    """
    variables = {
        path: jax.ShapeDtypeStruct(value.shape, value.dtype)
        for path, value in values.items()
    }
    for shapes_of_features in shapes.symbolic(specs):
        inputs = jax.tree.unflatten(nest, shapes_of_features)
        rows = jax.ShapeDtypeStruct((batch_size(inputs),), bool)
        try:
            step = program.step(
                ModeKeys.PREDICT, Feed().step_input(inputs, rows)
            )
            function = jax.jit(_function(step, nest, local), keep_unused=True)
            exported = jax.export.export(function, platforms=_PLATFORMS)(
                variables, shapes_of_features
            )
        except Exception as error:
            reason = error
            continue
        return exported, exported.out_tree
    open_features = [spec for spec in specs if None in spec.shape]
    raise ValueError(
        "The model can be run, but not be exported. Expected one that JAX can "
        f"lower for {_PLATFORMS} with these open dimensions: "
        f"{ {spec.name: spec.shape for spec in open_features} }. Received "
        f"{type(reason).__name__}: {reason} Fix the sizes in the receiver "
        "function (tf.ensure_shape, default_batch_size), or change that line."
    ) from reason
