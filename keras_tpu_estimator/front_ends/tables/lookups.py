"""The lookups of a batch: ids, and the combination of their rows."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from keras_tpu_estimator.front_ends.tables.tables import FeatureConfig, TableConfig

# The value of a missing id.
_NONE = -1
_LENGTH_OF = "_seq_length_"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lookups:
    """The lookups of a batch in one table; each combiner is a sum over a divisor.

    Attributes:
        ids: Of shape `[batch, ids of an example]`, with -1 for missing ids.
        weights: Of the same shape, or `None` if all are 1.
        divisors: Of shape `[batch, 1]`, or `None` if all are 1 or the lookups are for
            other devices.
    """

    ids: jax.Array
    weights: jax.Array | None
    divisors: jax.Array | None

    def divided(self, x: jax.Array) -> jax.Array:
        """Divides sums of examples, or gradients of activations."""
        return x if self.divisors is None else x / self.divisors


@dataclasses.dataclass(frozen=True)
class IdFeature:
    """A feature of ids, whose key among the features is `name`, and its activations."""

    name: str
    config: FeatureConfig
    table: TableConfig

    @property
    def is_sequence(self) -> bool:
        """Whether the rows of an example are not combined."""
        return self.config.max_sequence_length > 0

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the features that activations replace."""
        weights = self.config.weight_key
        return (self.name,) if weights is None else (self.name, weights)

    def activations(self, size: int) -> jax.ShapeDtypeStruct:
        """Returns shapes and dtypes of activations at a batch size."""
        length = self.config.max_sequence_length
        between = (length,) if length else ()
        return jax.ShapeDtypeStruct((size, *between, self.table.dimension), "float32")

    def check(self, features: Mapping[str, Any]) -> None:
        """Checks that the ids and weights of a batch exist and are well-formed."""
        missing = [key for key in self.keys if key not in features]
        if missing:
            raise ValueError(
                f"The feature {self.name!r} of embedding_config_spec must "
                f"exist, with its weights. Received {sorted(features)} "
                f"without {missing}. Return them from input_fn."
            )
        ids, *weights = (features[key] for key in self.keys)
        if not (jnp.issubdtype(ids.dtype, jnp.integer) and len(ids.shape) in (1, 2)):
            raise ValueError(
                f"The ids {self.name!r} must be integers of shape [batch] or "
                "[batch, ids of an example], with -1 for missing ids. "
                f"Received: {ids.dtype} of shape {tuple(ids.shape)}. Pad "
                "sparse or ragged ids in input_fn, and turn strings into "
                "numbers."
            )
        for weight in weights:
            if weight.shape != ids.shape:
                raise ValueError(
                    f"The weights {self.config.weight_key!r} must have the "
                    f"shape of the ids {self.name!r}, {tuple(ids.shape)}. "
                    f"Received: {tuple(weight.shape)}. Pad both to the same "
                    "shape."
                )
        several = len(ids.shape) == 2 and ids.shape[1] != 1
        if self.table.combiner is None and not self.is_sequence and several:
            raise ValueError(
                f"The ids {self.name!r} must be one for each example, because "
                "their table has combiner=None. Received shape "
                f"{tuple(ids.shape)}. Set a combiner, or max_sequence_length."
            )

    def lookups(self, features: Mapping[str, Any]) -> Lookups:
        """Returns the lookups of a batch."""
        ids = self._ids(features)
        is_there = ids != _NONE
        weights = None
        if self.config.weight_key is not None:
            weights = _matrix(features[self.config.weight_key])
            weights = jnp.where(is_there, weights.astype("float32"), 0.0)
        if not self.is_sequence:
            counted = is_there.astype("float32") if weights is None else weights
            divisors = _divisors(counted, self.table.combiner)
            return Lookups(ids, weights, divisors)
        if weights is not None:
            weights = self._of_length(weights, 0.0)
        return Lookups(self._of_length(ids), weights, None)

    def lengths(self, features: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Returns the length of each sequence, the index of its last valid id plus one,
        by its key in `features`.
        """
        if not self.is_sequence:
            return {}
        ids = self._ids(features)
        positions = jnp.arange(1, ids.shape[1] + 1, dtype="int32")
        last = jnp.max(jnp.where(ids == _NONE, 0, positions), axis=1, initial=0)
        longest = self.config.max_sequence_length
        return {self.name + _LENGTH_OF: jnp.minimum(last, longest)}

    def _ids(self, features: Mapping[str, Any]) -> jax.Array:
        """Returns the ids as an int32 matrix, without invalid ids."""
        ids = _matrix(features[self.name])
        if ids.dtype.itemsize < 4:
            # A narrow dtype may not be able to represent the size of the table.
            ids = ids.astype("int32")
        is_there = (ids >= 0) & (ids < self.table.vocabulary_size)
        return jnp.where(is_there, ids.astype("int32"), _NONE)

    def _of_length(self, x: jax.Array, filler: float = _NONE) -> jax.Array:
        """Cuts or pads ids to the length of the sequence."""
        length, num_ids = self.config.max_sequence_length, x.shape[1]
        # In an export the size may be a symbol, which may be 1.
        is_known = isinstance(num_ids, int)
        missing = max(length - num_ids, 0) if is_known else length
        filled = jnp.pad(x, ((0, 0), (0, missing)), constant_values=filler)
        return filled[:, :length]


def _matrix(x: Any) -> jax.Array:
    x = jnp.asarray(x)
    return x[:, None] if x.ndim == 1 else x


def _divisors(weights: jax.Array, combiner: str | None) -> jax.Array | None:
    """Returns the divisors of the weighted sums of examples."""
    if combiner == "mean":
        divisors = jnp.sum(weights, axis=1, keepdims=True)
    elif combiner == "sqrtn":
        divisors = jnp.sqrt(jnp.sum(weights**2, axis=1, keepdims=True))
    else:
        return None
    # Examples without ids also have no weights, and stay zero.
    return jnp.where(divisors == 0, 1.0, divisors)
