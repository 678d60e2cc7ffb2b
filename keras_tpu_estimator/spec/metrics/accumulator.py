"""Sums that keep their values from batch to batch."""

import dataclasses
from typing import TYPE_CHECKING
from typing import TypeVar

import jax
import keras

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# The value over all batches so far, twice for most metrics: user code written
# for graphs expects a tensor to read and an operation to run.
Running = tuple[jax.Array, jax.Array]
Sums = TypeVar("Sums", bound="DataclassInstance")


class Accumulator(keras.metrics.Metric):
    """Adds records of sums, one variable for each field.

    Where variables live by path, as in a `metric_fn`, an accumulator goes on
    from the totals of the last batch; elsewhere it starts from zero.

    Args:
        name: Prefix of the variables' paths.

    Example:

    >>> import dataclasses
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from keras_tpu_estimator.spec.metrics.accumulator import Accumulator
    >>> @dataclasses.dataclass(frozen=True)
    ... class Words:
    ...     count: jax.Array
    >>> accumulator = Accumulator("words")
    >>> totals = accumulator.add(Words(jnp.float32(3)))
    >>> float(accumulator.add(Words(jnp.float32(4))).count)
    7.0
    """

    def __init__(self, name: str):
        super().__init__(dtype="float32", name=name)
        self._totals: dict[str, keras.Variable] = {}

    def add(self, batch: Sums) -> Sums:
        """Adds the sums of one batch.

        Args:
            batch: A dataclass whose fields are float32 arrays, of the same
                shapes each time.

        Returns:
            The totals, as a record of the same type.
        """
        names = [field.name for field in dataclasses.fields(batch)]
        return type(batch)(
            **{n: self._add(n, getattr(batch, n)) for n in names}
        )

    def _add(self, name: str, value: jax.Array) -> jax.Array:
        if name not in self._totals:
            self._totals[name] = self.add_variable(
                value.shape, initializer="zeros", dtype="float32", name=name
            )
        total = self._totals[name].value + value
        self._totals[name].assign(total)
        return total


def accumulate(batch: Sums, name: str | None, default: str) -> Sums:
    """Adds a batch to the totals of the metric that is being called.

    Args:
        batch: A dataclass of float32 arrays.
        name: The name that the user gave the metric, or `None`.
        default: Its name if the user gave none; a number is appended from the
            second such call on, as Keras does for layers.

    Returns:
        The totals over all batches so far, as a record of the same type.
    """
    if name is None:
        uses = keras.backend.get_uid(default)
        name = default if uses == 1 else f"{default}_{uses - 1}"
    return Accumulator(name).add(batch)
