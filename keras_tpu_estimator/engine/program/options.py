"""How a `model_fn` is traced, beyond what it says itself."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.ground.tracing import keras_patches
from keras_tpu_estimator.spec.config.run_config import RunConfig

_SMALL = (jnp.bfloat16, jnp.float16)


@dataclasses.dataclass(frozen=True)
class TraceOptions:
    """What a `RunConfig` says about tracing a `model_fn`.

    Attributes:
        dtype_policy: The Keras dtype policy of the layers that it makes.
            Defaults to `None`, for the one that is set in Keras.
        remat: What is computed anew for gradients, "full" or "activations".
            Defaults to `None`, for nothing.
        micro_batches: Into how many parts each core cuts its batch in TRAIN.
            Defaults to 1.
        records: Whether its summaries are among the outputs of TRAIN and EVAL.
            Defaults to `False`.
        random_bits: The generator of random bits, as in `RunConfig`. Defaults
            to `None`, for JAX's default.
    """

    dtype_policy: str | None = None
    remat: str | None = None
    micro_batches: int = 1
    records: bool = False
    random_bits: str | None = None

    @classmethod
    def of(cls, config: Any) -> "TraceOptions":
        """The options of a `RunConfig`; those of anything else are none."""
        if not isinstance(config, RunConfig):
            return cls()
        return cls(
            config.dtype_policy,
            config.remat,
            config.micro_batches or 1,
            records=bool(config.save_summary_steps),
            random_bits=config.random_bits,
        )

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Sets what is Keras's for the time of a `with` block."""
        with keras_patches.made_by(self.random_bits):
            if self.dtype_policy is None:
                yield
                return
            before = keras.config.dtype_policy()
            keras.config.set_dtype_policy(self.dtype_policy)
            try:
                yield
            finally:
                keras.config.set_dtype_policy(before)

    def outputs(self, tensors: Nest) -> Nest:
        """Tensors that leave the device: under a policy, none is small."""
        return tensors if self.dtype_policy is None else widened(tensors)


def widened(tensors: Nest) -> Nest:
    """A nest of tensors, those of 16-bit floats as float32."""
    return jax.tree.map(
        lambda leaf: leaf.astype("float32") if leaf.dtype in _SMALL else leaf,
        tensors,
    )
