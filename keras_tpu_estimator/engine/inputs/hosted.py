"""Tensors that the host computes from a batch before the devices receive it."""

from collections.abc import Mapping
from typing import Any

import jax

from keras_tpu_estimator.ground.base.types import Nest


@jax.tree_util.register_pytree_with_keys_class
class Hosted:
    """The tensors of one batch that the host has computed for a step.

    They take the place of the user's features and labels. To JAX, they are a
    pytree of the tensors.

    Args:
        tensors: Arrays by name.
        part: The part of the program that computed them. A program may have
            several, such as one for each batch size.
    """

    def __init__(self, tensors: Mapping[str, Any], part: Any):
        self.tensors = dict(tensors)
        self.part = part

    def tree_flatten_with_keys(self) -> tuple[list[Any], Any]:
        """The tensors with their names, and what else belongs to them."""
        key = jax.tree_util.DictKey
        leaves = [(key(name), value) for name, value in self.tensors.items()]
        return leaves, (tuple(self.tensors), self.part)

    def tree_flatten(self) -> tuple[list[Any], Any]:
        """The tensors, and what else belongs to them."""
        return [*self.tensors.values()], (tuple(self.tensors), self.part)

    @classmethod
    def tree_unflatten(cls, aux: Any, leaves: Any) -> "Hosted":
        """The same with other tensors."""
        names, part = aux
        return cls(dict(zip(names, leaves, strict=True)), part)


def tensors_of(features: Nest) -> Nest:
    """Returns features; those of `Hosted` without the part that computed them."""
    return features.tensors if isinstance(features, Hosted) else features
