"""What a batch asks of tables: ids, and how their rows are combined."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from keras_tpu_estimator.front_ends.tables.tables import FeatureConfig
from keras_tpu_estimator.front_ends.tables.tables import TableConfig

# In place of an id that is none.
_NONE = -1
_LENGTH_OF = "_seq_length_"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lookups:
    """What a batch asks of one table: every combiner is a sum over a divisor.

    Cores that look up rows for others need no divisors.

    Attributes:
        ids: Of shape `[batch, ids of an example]`, with -1 for none.
        weights: Of the same shape, or `None` where all are 1.
        divisors: Of shape `[batch, 1]`, or `None` where all are 1.
    """

    ids: jax.Array
    weights: jax.Array | None
    divisors: jax.Array | None

    def divided(self, x: jax.Array) -> jax.Array:
        """Sums of examples, or gradients of activations, over the divisors."""
        return x if self.divisors is None else x / self.divisors


@dataclasses.dataclass(frozen=True)
class IdFeature:
    """A feature of ids: how it is given, and what becomes of it.

    Attributes:
        name: Its key among the features.
        config: In which table it is looked up.
    """

    name: str
    config: FeatureConfig
    table: TableConfig

    @property
    def is_sequence(self) -> bool:
        """Whether the rows of an example stay apart."""
        return self.config.max_sequence_length > 0

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of what is taken out of the features."""
        weights = self.config.weight_key
        return (self.name,) if weights is None else (self.name, weights)

    def activations(self, size: int) -> jax.ShapeDtypeStruct:
        """What is put in their place, for a batch of this size."""
        length = self.config.max_sequence_length
        between = (length,) if length else ()
        return jax.ShapeDtypeStruct(
            (size, *between, self.table.dimension), "float32"
        )

    def check(self, features: Mapping[str, Any]) -> None:
        """Checks what features there are.

        Raises:
            ValueError: Ids or weights are not there, or not as they should be.
        """
        missing = [key for key in self.keys if key not in features]
        if missing:
            raise ValueError(
                f"The feature {self.name!r} of embedding_config_spec should "
                f"be there, with its weights. Received {sorted(features)} "
                f"without {missing}. Return them from input_fn."
            )
        ids, *weights = (features[key] for key in self.keys)
        if not (
            jnp.issubdtype(ids.dtype, jnp.integer) and len(ids.shape) in (1, 2)
        ):
            raise ValueError(
                f"The ids {self.name!r} should be integers of shape [batch] "
                "or [batch, ids of an example], with -1 where there is none. "
                f"Received: {ids.dtype} of shape {tuple(ids.shape)}. Pad what "
                "is sparse or ragged in input_fn, and make numbers of strings."
            )
        for each in weights:
            if each.shape != ids.shape:
                raise ValueError(
                    f"The weights {self.config.weight_key!r} should have the "
                    f"shape of the ids {self.name!r}, {tuple(ids.shape)}. "
                    f"Received: {tuple(each.shape)}. Pad them alike."
                )
        several = len(ids.shape) == 2 and ids.shape[1] != 1
        if self.table.combiner is None and not self.is_sequence and several:
            raise ValueError(
                f"The ids {self.name!r} should be one for each example, for "
                f"their table has combiner=None. Received shape "
                f"{tuple(ids.shape)}. Set a combiner, or max_sequence_length."
            )

    def lookups(self, features: Mapping[str, Any]) -> Lookups:
        """What a batch asks of the table."""
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
        """The length of each sequence, by the name that `model_fn` has it by.

        Gaps count: it is the place of the last id that the table has.
        """
        if not self.is_sequence:
            return {}
        ids = self._ids(features)
        places = jnp.arange(1, ids.shape[1] + 1, dtype="int32")
        last = jnp.max(jnp.where(ids == _NONE, 0, places), axis=1, initial=0)
        longest = self.config.max_sequence_length
        return {self.name + _LENGTH_OF: jnp.minimum(last, longest)}

    def _ids(self, features: Mapping[str, Any]) -> jax.Array:
        """The ids as int32 matrix: what the table does not have is none."""
        ids = _matrix(features[self.name])
        if ids.dtype.itemsize < 4:
            # The size of the table may be no number of a narrow dtype.
            ids = ids.astype("int32")
        is_there = (ids >= 0) & (ids < self.table.vocabulary_size)
        return jnp.where(is_there, ids.astype("int32"), _NONE)

    def _of_length(self, x: jax.Array, filler: float = _NONE) -> jax.Array:
        """Cut, or filled, to the length of the sequence."""
        length, given = self.config.max_sequence_length, x.shape[1]
        # An export may have a symbol for the size, which may be 1.
        is_known = isinstance(given, int)
        missing = max(length - given, 0) if is_known else length
        filled = jnp.pad(x, ((0, 0), (0, missing)), constant_values=filler)
        return filled[:, :length]


def _matrix(x: Any) -> jax.Array:
    x = jnp.asarray(x)
    return x[:, None] if x.ndim == 1 else x


def _divisors(weights: jax.Array, combiner: str | None) -> jax.Array | None:
    """What the weighted sums of examples are divided by."""
    if combiner == "mean":
        found = jnp.sum(weights, axis=1, keepdims=True)
    elif combiner == "sqrtn":
        found = jnp.sqrt(jnp.sum(weights**2, axis=1, keepdims=True))
    else:
        return None
    # Examples without ids, which have no weights either, stay zeros.
    return jnp.where(found == 0, 1.0, found)
