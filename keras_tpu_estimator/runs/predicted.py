"""The predictions of one batch, and what of them `predict` yields."""

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.ground.base.types import Nest


@dataclasses.dataclass(frozen=True)
class Predicted:
    """Predictions without padding.

    Attributes:
        predictions: An array or a dict of arrays. Those without a row for each
            example are as the devices gave them.

    Example:

    >>> batch = Predicted({"x": np.zeros(2), "y": np.ones(2)}, examples=2)
    >>> len(list(batch.select("y").rows()))
    2
    """

    predictions: Nest
    examples: int

    @property
    def by_name(self) -> dict[str, Any]:
        """The predictions as Keras's callbacks get them."""
        if isinstance(self.predictions, Mapping):
            return dict(self.predictions)
        return {"outputs": self.predictions}

    def select(self, keys: Any) -> "Predicted":
        """Those under some keys; all of them for no keys.

        Raises:
            ValueError: Predictions are no dict, or have none of the keys.
        """
        if not keys:
            return self
        keys = [keys] if isinstance(keys, str) else list(keys)
        predictions = self.predictions
        if not isinstance(predictions, Mapping):
            raise ValueError(
                "`predict_keys` need predictions in a dict. Received keys "
                f"{keys} and predictions of type {type(predictions).__name__}."
            )
        selected = {k: v for k, v in predictions.items() if k in keys}
        if not selected:
            raise ValueError(
                f"Expected `predict_keys` among {sorted(predictions)}. "
                f"Received: {keys}"
            )
        return dataclasses.replace(self, predictions=selected)

    def rows(self) -> Iterator[Any]:
        """The predictions of single examples.

        Raises:
            ValueError: One of them has no row for each example.
        """
        if not isinstance(self.predictions, Mapping):
            self._check_rows("predictions", self.predictions)
            yield from self.predictions
            return
        for name, values in self.predictions.items():
            self._check_rows(name, values)
        if len(self.predictions) == 1:
            ((name, values),) = self.predictions.items()
            for value in values:
                yield {name: value}
            return
        for values in zip(*self.predictions.values(), strict=True):
            yield dict(zip(self.predictions, values, strict=True))

    def with_own_rows(self) -> "Predicted":
        """The same with as many examples as the predictions have rows."""
        leaves = jax.tree.leaves(self.predictions)
        rows = next((len(each) for each in leaves if np.ndim(each)), 0)
        return dataclasses.replace(self, examples=rows)

    def _check_rows(self, name: str, values: Any) -> None:
        if np.shape(values)[:1] != (self.examples,):
            raise ValueError(
                f"The prediction {name!r} should have one row for each of "
                f"{self.examples} examples. Received shape "
                f"{np.shape(values)}. Keep the batch as its first axis, leave "
                "it out with `predict_keys`, or pass "
                "yield_single_examples=False."
            )
