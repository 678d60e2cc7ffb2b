"""A user's `model_fn`: its arguments, its return value, and options for tracing it.

Errors inside a `model_fn` get notes that list the keys and inputs it received.
"""

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.api.config.run_config import RunConfig
from keras_tpu_estimator.api.model_fn.spec import EstimatorSpec, Spec, TPUEstimatorSpec
from keras_tpu_estimator.base.common.field_checks import did_you_mean
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.params import (
    argument_names,
    copied,
    with_additional,
)
from keras_tpu_estimator.base.common.shown import shown, some
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.base.mesh.replica_context import ReduceDtype, combining_in
from keras_tpu_estimator.base.upstream import keras_random
from keras_tpu_estimator.engine.inputs.unbatched import named_leaves

_SMALL = (jnp.bfloat16, jnp.float16)


@dataclasses.dataclass(frozen=True)
class TraceOptions:
    """The options for tracing a `model_fn`.

    Attributes:
        dtype_policy: The Keras dtype policy of new layers. `None` means the
            policy that is set in Keras.
        remat: The values that are recomputed for gradients, "full" or
            "activations". `None` means none.
        micro_batches: The number of parts of each core's batch in TRAIN.
        records: Whether summaries are among the outputs of TRAIN and EVAL.
        reduce_dtype: The dtype in which gradients are combined by default.
        synchronize_batch_norm: Whether batch normalization of all layers uses the
            examples of all replicas.
    """

    dtype_policy: str | None = None
    remat: str | None = None
    micro_batches: int = 1
    records: bool = False
    random_bits: str | None = None
    reduce_dtype: ReduceDtype | None = None
    synchronize_batch_norm: bool = False

    @classmethod
    def of(cls, config: Any) -> "TraceOptions":
        """Returns the options of a `RunConfig`, or the defaults for another value."""
        if not isinstance(config, RunConfig):
            return cls()
        return cls(
            config.dtype_policy,
            config.remat,
            config.micro_batches or 1,
            records=bool(config.save_summary_steps),
            random_bits=config.random_bits,
            reduce_dtype=config.reduce_dtype,
            synchronize_batch_norm=config.synchronize_batch_norm,
        )

    def refuse(self, reason: str) -> None:
        """Raises an error if an option is set that changes the computation, for a front
        end that does not support them.

        Args:
            reason: Why not, as the rest of a sentence that begins with "because".
        """
        received = {
            "dtype_policy": self.dtype_policy is not None,
            "remat": self.remat is not None,
            "micro_batches": self.micro_batches != 1,
            "reduce_dtype": self.reduce_dtype is not None,
        }
        for name in filter(received.get, received):
            raise NotImplementedError(
                f"RunConfig.{name} must not be set, because {reason}. Leave it out."
            )

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Sets the options of Keras in a `with` block."""
        with keras_random.made_by(self.random_bits), combining_in(self.reduce_dtype):
            if self.dtype_policy is None:
                yield
                return
            before = keras.config.dtype_policy()
            keras.config.set_dtype_policy(self.dtype_policy)
            try:
                yield
            finally:
                keras.config.set_dtype_policy(before)

    def outputs(self, tensors: PyTree) -> PyTree:
        """Returns tensors that leave the device, as float32 under a policy."""
        return tensors if self.dtype_policy is None else widened(tensors)


def widened(tensors: PyTree) -> PyTree:
    """Returns a pytree of tensors with 16-bit floats as float32."""
    return jax.tree.map(
        lambda leaf: leaf.astype("float32") if leaf.dtype in _SMALL else leaf,
        tensors,
    )


SpecFunction: TypeAlias = Callable[[Features, Labels, str, Mapping[str, Any]], Spec]


@dataclasses.dataclass(frozen=True)
class BoundModelFn:
    """A user's `model_fn` with all arguments bound except the data.

    `checks_params` means that `model_fn` must take `params`. `embeddings` is the
    `EmbeddingConfigSpec` whose activations it receives, or `None`.
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
        """Calls the user's function, and checks its arguments and the returned spec.

        `additional` are the entries that `params` has besides the user's own values.
        With its `use_tpu`, a spec must be a `TPUEstimatorSpec`, except in TRAIN.
        """
        names = argument_names(self.function)
        kwargs: dict[str, Any] = {}
        if "labels" in names:
            kwargs["labels"] = labels
        elif labels is not None and mode != ModeKeys.PREDICT:
            raise ValueError(
                "`model_fn` does not take labels, but the input has labels. "
                "Add an argument `labels`, or return only features from "
                "`input_fn`."
            )
        if "params" in names:
            kwargs["params"] = with_additional(self.params, additional)
        elif self.checks_params:
            raise ValueError(
                "`model_fn` must take an argument `params`, because TPUEstimator "
                "passes the batch size of one core in params['batch_size']. "
                f"Received a function of {list(names)}. Add the argument."
            )
        if "mode" in names:
            kwargs["mode"] = mode
        if "config" in names:
            kwargs["config"] = copied(self.config)
        with explained(features, labels, kwargs.get("params")):
            spec = self.function(features=features, **kwargs)
        return self._checked(spec, mode, additional["use_tpu"])

    def _checked(self, spec: object, mode: str, use_tpu: bool) -> Spec:
        if not isinstance(spec, TPUEstimatorSpec | EstimatorSpec):
            raise ValueError(
                "`model_fn` must return a TPUEstimatorSpec or an "
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
                f"In mode {mode!r} with use_tpu=True `model_fn` must return a "
                "TPUEstimatorSpec. Received an EstimatorSpec. Return "
                "TPUEstimatorSpec(..., eval_metrics=(metric_fn, tensors)) "
                "instead."
            )
        if mode == ModeKeys.PREDICT and not isinstance(spec.predictions, Mapping):
            raise TypeError(
                "With use_tpu=True predictions must be a dict of tensors. "
                f"Received: {type(spec.predictions).__name__}. Give the "
                "tensor a name: predictions={'output': tensor}."
            )
        return spec


_LAYERS = ("keras", "jax")
_MOST_KEYS = 12
# Names that libraries give the labels among the columns of a batch.
_LABELS = ("label", "labels", "target", "targets")


@contextlib.contextmanager
def explained(features: Features, labels: Labels, params: Any) -> Iterator[None]:
    """Adds notes to errors in a `with` block that calls a `model_fn`.

    An error about a missing key gets a note with the existing keys, an error in a layer
    or an operation one with the inputs, and an error about `None` one about labels
    among the features.
    """
    try:
        yield
    except KeyError as error:
        mappings = {"features": features, "labels": labels, "params": params}
        for note in _about_keys(error, mappings):
            error.add_note(note)
        raise
    except (AttributeError, TypeError, ValueError) as error:
        if labels is None and "None" in str(error):
            _note_labels(error, features)
        if not isinstance(error, AttributeError) and _is_of_layer(error):
            error.add_note(f"model_fn received {inputs(features, labels)}.")
        raise


def inputs(features: Features, labels: Labels) -> str:
    """Returns the names, dtypes and shapes of a `model_fn`'s inputs as a text."""
    return some(
        [f"{name}: {shown(leaf)}" for name, leaf in named_leaves(features, labels)]
    )


def _note_labels(error: Exception, features: Features) -> None:
    names = features if isinstance(features, Mapping) else {}
    for name in filter(names.__contains__, _LABELS):
        error.add_note(
            f"`labels` is None, and {name!r} is one of the features: input_fn "
            "must return pairs. Return ((batch, batch.pop("
            f"{name!r})) for batch in batches), or use features[{name!r}]."
        )


def _about_keys(error: KeyError, mappings: Mapping[str, Any]) -> list[str]:
    """Returns notes about the keys of the mappings that may lack a key."""
    key = error.args[0] if error.args else None
    lacking = {
        name: (mapping, did_you_mean(key, mapping))
        for name, mapping in mappings.items()
        if isinstance(mapping, Mapping) and isinstance(key, str) and key not in mapping
    }
    likely = {name: found for name, found in lacking.items() if found[1]}
    return [
        f"`{name}` has no {key!r}, but "
        f"[{some(sorted(map(repr, mapping)), _MOST_KEYS)}].{question}"
        for name, (mapping, question) in (likely or lacking).items()
    ]


def _is_of_layer(error: Exception) -> bool:
    """Returns whether an error comes from inside Keras or JAX."""
    return any(
        frame.f_globals.get("__name__", "").split(".")[0] in _LAYERS
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )
