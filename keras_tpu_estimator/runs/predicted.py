"""The predictions of one batch, and what of them `predict` yields."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.ground.base.types import Nest


@dataclasses.dataclass(frozen=True)
class Predicted:
    """Predictions of one batch, without padding where they are read.

    Attributes:
        predictions: An array or a dict of arrays. Those with one row for each
            example are without padding; others are as the devices gave them.
        examples: How many examples the batch has.
        size: How many it has with padding. Defaults to as many.

    Example:

    >>> batch = Predicted({"x": np.zeros(2), "y": np.ones(2)}, examples=2)
    >>> len(list(batch.select("y").rows()))
    2
    """

    predictions: Nest
    examples: int
    size: int | None = None

    @property
    def by_name(self) -> dict[str, Any]:
        """The predictions as Keras's callbacks get them."""
        whole = self.whole
        return dict(whole) if isinstance(whole, Mapping) else {"outputs": whole}

    @property
    def whole(self) -> Nest:
        """The predictions of all examples.

        If all have the same number of rows for each example, such as one for
        each of its tokens, rows of padding are cut off.
        """
        count = self._rows
        if count is None:
            return self.predictions
        return jax.tree.map(lambda array: array[:count], self.predictions)

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
                f"Expected `predict_keys` among {sorted(predictions)}. Received: {keys}"
            )
        return dataclasses.replace(self, predictions=selected)

    def rows(self) -> Iterator[Any]:
        """Returns the predictions of single rows; examples may have several.

        Raises:
            ValueError: One of them has no row for each example, or another
                number of rows than others.
        """
        whole, count = self.whole, self._rows
        if count is None:
            count = self.examples
        if not isinstance(whole, Mapping):
            self._check_rows("predictions", whole, count)
            return iter(whole)
        for name, values in whole.items():
            self._check_rows(name, values, count)
        if len(whole) == 1:
            ((name, values),) = whole.items()
            return ({name: value} for value in values)
        columns = zip(*whole.values(), strict=True)
        return (dict(zip(whole, row, strict=True)) for row in columns)

    def with_own_rows(self) -> "Predicted":
        """The same with as many examples as the predictions have rows."""
        leaves = jax.tree.leaves(self.predictions)
        rows = next((len(each) for each in leaves if np.ndim(each)), 0)
        return dataclasses.replace(self, examples=rows, size=None)

    @property
    def _rows(self) -> int | None:
        """The number of rows for all examples, if each has several."""
        lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(self.predictions)}
        size = self.examples if self.size is None else self.size
        if len(lengths) != 1 or not size or lengths == {()}:
            return None
        ((length,),) = lengths
        each, left = divmod(length, size)
        return None if each < 2 or left else each * self.examples

    def _check_rows(self, name: str, values: Any, count: int) -> None:
        if np.shape(values)[:1] != (count,):
            raise ValueError(
                f"The prediction {name!r} should have one row for each of "
                f"{self.examples} examples, or all predictions several. "
                f"Received shape {np.shape(values)}. Keep the batch as its "
                "first axis, leave it out with `predict_keys`, or pass "
                "yield_single_examples=False."
            )
