"""A model as a module that TensorFlow runs."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from keras_tpu_estimator.base.common.user_code import SourceLine
from keras_tpu_estimator.export import shapes, stablehlo
from keras_tpu_estimator.export.batching import BatchConfig
from keras_tpu_estimator.export.loading import LoadedModel, Request
from keras_tpu_estimator.export.served_model_fn import SignatureOutput

if TYPE_CHECKING:
    import tensorflow as tf

_PLATFORMS = ("cpu", "cuda", "tpu")


@dataclasses.dataclass(frozen=True)
class LoweredModel:
    """A model for any platform and, if the features allow it, any batch size.

    TensorFlow reads `module`, whose arguments are the variables in the order of
    `values`, and then the flat features. `lines` returns the user's lines of the flat
    outputs, whose structure is `outputs`.
    """

    exported: jax.export.Exported
    module: bytes
    values: Mapping[str, np.ndarray]
    outputs: jax.tree_util.PyTreeDef
    signatures: Mapping[str, SignatureOutput]
    batch_config: BatchConfig | None
    assigned: Sequence[str]
    trial: Sequence[Request]
    lines: Callable[[], Sequence[SourceLine | None]]

    def call(
        self, variables: Sequence["tf.Tensor"], features: Sequence["tf.Tensor"]
    ) -> tuple[list["tf.Tensor"], dict[str, "tf.Tensor"]]:
        """Returns the flat outputs, and new values of variables by path.

        The variables have the order of `values`, and the features the model's dtypes.
        """
        import tensorflow as tf

        # JAX's `jax2tf` also calls this; `tf.raw_ops` lacks the operation.
        from tensorflow.compiler.tf2xla.python import xla

        avals = self.exported.out_avals
        sizes = [
            [size if isinstance(size, int) else None for size in aval.shape]
            for aval in avals
        ]

        def run(*features: Any) -> Any:
            return xla.call_module(
                [*variables, *features],
                version=self.exported.calling_convention_version,
                module=self.module,
                Tout=[aval.dtype for aval in avals],
                Sout=sizes,
                platforms=[name.upper() for name in self.exported.platforms],
                disabled_checks=[],
                has_token_input_output=False,
                function_list=[],
                use_shardy_partitioner=False,
            )

        if self.batch_config is not None:
            run = self.batch_config.batched(run)
        results = run(*features)
        results = [
            tf.ensure_shape(result, shape)
            for result, shape in zip(results, sizes, strict=True)
        ]
        count = self.outputs.num_leaves
        # JAX returns the values of a dict in the order of its keys.
        state = zip(sorted(self.assigned), results[count:], strict=True)
        return results[:count], dict(state)


def lower(loaded: LoadedModel) -> LoweredModel:
    """Lowers a model, with open dimensions where its features have them."""
    if loaded.assigned and loaded.served.batch_config is not None:
        raise ValueError(
            "A model with batched requests must not assign variables. Received: "
            f"assignments of {sorted(loaded.assigned)}. Remove the batching, or "
            "the random numbers and counters in mode "
            f"{loaded.served.mode!r}."
        )
    exported = _exported(loaded)
    outputs, _ = jax.tree_util.treedef_children(exported.out_tree)
    return LoweredModel(
        exported=exported,
        module=stablehlo.for_tensorflow(exported.mlir_module_serialized),
        values=loaded.values,
        outputs=outputs,
        signatures=loaded.served.signatures,
        batch_config=loaded.served.batch_config,
        assigned=loaded.assigned,
        trial=loaded.trial,
        lines=loaded.lines,
    )


def _exported(loaded: LoadedModel) -> jax.export.Exported:
    """Exports for the most general shapes with which the model can be traced."""
    variables = {
        path: jax.ShapeDtypeStruct(value.shape, value.dtype)
        for path, value in loaded.values.items()
    }
    specs = jax.tree.leaves(loaded.features)
    for features in shapes.symbolic(specs):
        try:
            function = loaded.function(loaded.step(features))
            return jax.export.export(
                jax.jit(function, keep_unused=True), platforms=_PLATFORMS
            )(variables, features)
        except Exception as error:
            reason = error
    open_features = [spec for spec in specs if None in spec.shape]
    raise ValueError(
        f"JAX must be able to lower an exported model for {_PLATFORMS} with these "
        f"open dimensions: { {spec.name: spec.shape for spec in open_features} }. "
        f"Received: {type(reason).__name__}: {reason} Set the sizes in the receiver "
        "function (tf.ensure_shape, default_batch_size), or change that line."
    ) from reason
