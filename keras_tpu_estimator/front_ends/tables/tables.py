"""What a table is, and which feature is looked up in it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.front_ends.tables.parameters import (
    OptimizationParameters,
)
from keras_tpu_estimator.ground.base.field_checks import check_int
from keras_tpu_estimator.ground.base.field_checks import is_number
from keras_tpu_estimator.ground.base.named_tuple_like import NamedTupleLike

_MOST_ROWS = 2**31 - 1
_COMBINERS = ("mean", "sum", "sqrtn", None)


@dataclasses.dataclass(frozen=True)
class TableConfig(NamedTupleLike):
    """A table, which has one row for each id.

    Args:
        vocabulary_size: The number of rows; positive, and below 2**31.
        dimension: The number of columns; positive.
        initializer: Function of a shape and a dtype, such as a Keras
            initializer. Defaults to `None`: a truncated normal one of standard
            deviation `1 / sqrt(dimension)`.
        combiner: What several ids of an example become: the "mean" (the
            default), the "sum", or with "sqrtn" the sum over the root of the
            sum of squared weights, of their rows. `None`, where each example
            has one id.
        learning_rate: In place of that of the optimizer. Defaults to `None`.
        learning_rate_fn: The same as a function of the global step, a scalar
            tensor. Defaults to `None`.
        optimization_parameters: Such as `AdagradParameters`. Defaults to
            `None`: those of `EmbeddingConfigSpec`.
        hot_id_replication: Accepted for compatibility. Defaults to `False`.

    Raises:
        ValueError: A value is wrong, or there are two learning rates.
        TypeError: A size is no `int`.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> kte.experimental.TableConfig(1000, 16, combiner="sum").dimension
    16
    """

    vocabulary_size: int
    dimension: int
    initializer: Callable[..., Any] | None = None
    combiner: str | None = "mean"
    hot_id_replication: bool = False
    learning_rate: float | None = None
    learning_rate_fn: Callable[[Any], Any] | None = None
    optimization_parameters: OptimizationParameters | None = None

    def __post_init__(self) -> None:
        check_int("vocabulary_size", self.vocabulary_size, 1)
        check_int("dimension", self.dimension, 1)
        if self.vocabulary_size > _MOST_ROWS:
            raise ValueError(
                f"`vocabulary_size` should be at most {_MOST_ROWS}, as ids "
                f"have 32 bits on devices. Received: {self.vocabulary_size}. "
                "Hash ids into fewer rows, or into those of several tables."
            )
        for name in ("initializer", "learning_rate_fn"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ValueError(
                    f"`{name}` should be a function or None. Received: "
                    f"{value!r}. Pass one, such as keras.initializers.Zeros()."
                )
        if self.combiner not in _COMBINERS:
            raise ValueError(
                f"`combiner` should be one of {_COMBINERS}. Received: "
                f"{self.combiner!r}. Choose one."
            )
        if self.learning_rate is not None and self.learning_rate_fn is not None:
            raise ValueError(
                "A table should have one learning rate at most. Received: "
                f"learning_rate={self.learning_rate} and learning_rate_fn="
                f"{self.learning_rate_fn}. Leave one out."
            )
        if self.learning_rate is not None and not is_number(self.learning_rate):
            raise ValueError(
                "`learning_rate` should be a number. Received: "
                f"{self.learning_rate!r}. Pass a function as learning_rate_fn."
            )
        check_parameters(self.optimization_parameters)

    def initial(self) -> jax.Array:
        """The rows that the table begins with, as a float32 tensor.

        Raises:
            ValueError: The initializer returns something of another shape.
        """
        initializer = self.initializer
        if initializer is None:
            initializer = keras.initializers.TruncatedNormal(
                stddev=self.dimension**-0.5
            )
        shape = (self.vocabulary_size, self.dimension)
        rows = jnp.asarray(initializer(shape, dtype="float32"), "float32")
        if rows.shape != shape:
            raise ValueError(
                f"The `initializer` of a table should return rows of shape "
                f"{shape}. Received: {initializer!r}, which returned shape "
                f"{rows.shape}. Change it, or the table's size."
            )
        return rows


@dataclasses.dataclass(frozen=True)
class FeatureConfig(NamedTupleLike):
    """In which table a feature is looked up, and how.

    Args:
        table_id: The key of the table.
        max_sequence_length: If positive, the rows of an example's ids are not
            combined: `model_fn` gets this many, with zeros after the last.
            Defaults to 0.
        weight_key: The feature that has a weight for each id. Defaults to
            `None`, for weights of 1.

    Raises:
        ValueError: `max_sequence_length` is negative.
        TypeError: It is no `int`.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> kte.experimental.FeatureConfig("words", 20).max_sequence_length
    20
    """

    table_id: str
    max_sequence_length: int = 0
    weight_key: str | None = None

    def __post_init__(self) -> None:
        check_int("max_sequence_length", self.max_sequence_length, 0)


def check_parameters(parameters: object) -> None:
    """Checks that something is what an optimizer of tables is set by.

    Raises:
        ValueError: It is neither that nor `None`.
    """
    if parameters is not None and not isinstance(
        parameters, OptimizationParameters
    ):
        raise ValueError(
            "`optimization_parameters` should be one of "
            f"{sorted(c.__name__ for c in _kinds())}. Received: {parameters!r} "
            f"of type {type(parameters).__name__}. Pass "
            "kte.experimental.AdagradParameters(learning_rate), say."
        )


def _kinds() -> list[type]:
    return OptimizationParameters.__subclasses__()
