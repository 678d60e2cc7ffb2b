"""The options that a `RunConfig` sets for tracing a `model_fn`."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.api.config.run_config import RunConfig
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.tracing import keras_patches

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
        random_bits: The generator of random bits, as in `RunConfig`.
    """

    dtype_policy: str | None = None
    remat: str | None = None
    micro_batches: int = 1
    records: bool = False
    random_bits: str | None = None

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
        )

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Sets the options of Keras in a `with` block."""
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

    def outputs(self, tensors: PyTree) -> PyTree:
        """Returns tensors that leave the device, as float32 under a policy."""
        return tensors if self.dtype_policy is None else widened(tensors)


def widened(tensors: PyTree) -> PyTree:
    """Returns a pytree of tensors with 16-bit floats as float32."""
    return jax.tree.map(
        lambda leaf: leaf.astype("float32") if leaf.dtype in _SMALL else leaf,
        tensors,
    )
