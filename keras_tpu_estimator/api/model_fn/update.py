"""The interface of updates of variables, which are executed after `model_fn`."""

import abc
import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import keras

Reduction = Literal["mean", "sum"]


class Update(abc.ABC):
    """An update of variables that is executed after `model_fn`.

    Attributes:
        variables: The updated variables.
        loss: Scalar tensor to differentiate, or `None`.
        reduction: The operation by which `reduced` combines its arguments over
            the replicas, or `None` if they must be equal on all.
    """

    variables: tuple[keras.Variable, ...]
    loss: Any = None
    reduction: Reduction | None = None

    @property
    def carried(self) -> tuple[Any, ...]:
        """The tensors of `model_fn` that `apply` receives without a loss."""
        return ()

    @property
    def scalars(self) -> tuple[Any, ...]:
        """The other scalars that `apply` needs, averaged over the replicas."""
        return ()

    def at(self, scalars: Sequence[Any]) -> AbstractContextManager[None]:
        """Sets these scalars for `apply` in a `with` block."""
        del scalars
        return contextlib.nullcontext()

    def reduced(
        self, tensors: Sequence[Any], shards: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Combines tensors over the replicas.

        Args:
            tensors: The gradients of the loss, or `carried`.
            shards: The variables that are sharded over the replicas, by path.
        """
        del shards
        return tuple(tensors)

    @abc.abstractmethod
    def apply(self, tensors: Sequence[Any]) -> Mapping[str, Any]:
        """Updates the variables.

        Args:
            tensors: The result of `reduced`.

        Returns:
            The learning rates it used, by optimizer name, where they are known.
        """
