"""The configuration of an embedding table, and of a feature that uses it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.base.common.field_checks import check_int, is_number
from keras_tpu_estimator.base.common.named_tuple_like import NamedTupleLike
from keras_tpu_estimator.front_ends.tables.parameters import (
    OptimizationParameters,
)

_MOST_ROWS = 2**31 - 1
_COMBINERS = ("mean", "sum", "sqrtn", None)


@dataclasses.dataclass(frozen=True)
class TableConfig(NamedTupleLike):
    """An embedding table, which has one row for each id.

    Args:
        vocabulary_size: The number of rows; positive, and below 2**31.
        dimension: The number of columns; positive.
        initializer: Function of a shape and a dtype, such as a Keras
            initializer. Defaults to `None`: a truncated normal distribution
            with standard deviation `1 / sqrt(dimension)`.
        combiner: The combination of the rows of an example's ids: the "mean"
            (the default), the "sum", or "sqrtn", the sum over the root of the
            sum of squared weights. `None` if each example has one id.
        learning_rate: Overrides the optimizer's rate. Defaults to `None`.
        learning_rate_fn: A function of the global step, a scalar tensor, which
            returns the learning rate. Defaults to `None`.
        optimization_parameters: An object such as `AdagradParameters`. Defaults
            to `None`, for those of `EmbeddingConfigSpec`.
        hot_id_replication: Accepted for compatibility. Defaults to `False`.

    Raises:
        ValueError: A value is wrong, or two learning rates are given.
        TypeError: A size is not an `int`.

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
                f"`vocabulary_size` must be at most {_MOST_ROWS}, because ids "
                f"have 32 bits on devices. Received: {self.vocabulary_size}. "
                "Hash ids into fewer rows, or into several tables."
            )
        for name in ("initializer", "learning_rate_fn"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ValueError(
                    f"`{name}` must be a function or None. Received: "
                    f"{value!r}. Pass one, such as keras.initializers.Zeros()."
                )
        if self.combiner not in _COMBINERS:
            raise ValueError(
                f"`combiner` must be one of {_COMBINERS}. Received: "
                f"{self.combiner!r}. Choose one."
            )
        if self.learning_rate is not None and self.learning_rate_fn is not None:
            raise ValueError(
                "A table must have at most one learning rate. Received: "
                f"learning_rate={self.learning_rate} and "
                f"learning_rate_fn={self.learning_rate_fn}. Leave one out."
            )
        if self.learning_rate is not None and not is_number(self.learning_rate):
            raise ValueError(
                "`learning_rate` must be a number. Received: "
                f"{self.learning_rate!r}. Pass a function as learning_rate_fn."
            )
        check_parameters(self.optimization_parameters)

    def initial(self) -> jax.Array:
        """Returns the initial rows of the table, as a float32 tensor.

        Raises:
            ValueError: The initializer returns another shape.
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
                "The `initializer` of a table must return rows of shape "
                f"{shape}. Received: {initializer!r}, which returned shape "
                f"{rows.shape}. Change it, or the table's size."
            )
        return rows


@dataclasses.dataclass(frozen=True)
class FeatureConfig(NamedTupleLike):
    """The lookup of a feature in an embedding table.

    Args:
        table_id: The key of the table.
        max_sequence_length: If positive, the rows of an example's ids are not
            combined: `model_fn` receives this many, with zeros after the last.
            Defaults to 0.
        weight_key: The feature that contains a weight for each id. Defaults to
            `None`, for weights of 1.

    Raises:
        ValueError: `max_sequence_length` is negative.
        TypeError: It is not an `int`.

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
    """Checks that a value is an `OptimizationParameters` or `None`."""
    if parameters is not None and not isinstance(parameters, OptimizationParameters):
        raise ValueError(
            "`optimization_parameters` must be one of "
            f"{sorted(c.__name__ for c in _kinds())}. Received: "
            f"{parameters!r} of type {type(parameters).__name__}. Pass an "
            "object such as "
            "kte.experimental.AdagradParameters(learning_rate)."
        )


def _kinds() -> list[type]:
    return OptimizationParameters.__subclasses__()
