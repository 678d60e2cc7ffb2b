"""Features of prediction that also contain which rows are padding."""

import collections
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from keras_tpu_estimator.base.upstream import keras_models
from keras_tpu_estimator.engine.program.steps import IS_PADDING


class PaddedFeatures(dict[str, Any]):
    """A dict with one more key, `"is_padding"`, whose value is an array of booleans of
    shape `[batch]`.

    The key exists for `in`, `[]`, `get` and `pop`, but not in iteration, `len`, copies,
    or functions of pytrees: those of JAX and Keras treat the object as a plain dict,
    and return one. `is_asked` is whether the key has been read.
    """

    def __init__(self, features: Mapping[str, Any], is_padding: Any):
        _register_in_keras()
        super().__init__(features)
        self.is_asked = False
        self._is_padding = is_padding
        # Its keys also keep their order in pytrees.
        self._type = (
            collections.OrderedDict
            if isinstance(features, collections.OrderedDict)
            else dict
        )

    def __missing__(self, key: str) -> Any:
        if key != IS_PADDING:
            raise KeyError(key)
        self.is_asked = True
        return self._is_padding

    def __contains__(self, key: object) -> bool:
        if super().__contains__(key):
            return True
        self.is_asked |= key == IS_PADDING
        return key == IS_PADDING

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key, or `default`."""
        return self[key] if key in self else default

    def pop(self, key: str, *default: Any) -> Any:
        """Returns and removes a value, unless it is `is_padding`."""
        if key in self.keys() or key != IS_PADDING:
            return super().pop(key, *default)
        return self[key]

    def tree_flatten(self) -> tuple[list[Any], Any, list[str]]:
        """Returns values, the data of `tree_unflatten`, and the keys, for Keras."""
        keys = list(self)
        if self._type is dict:
            keys.sort()
        return [self[key] for key in keys], (self._type, tuple(keys)), keys

    @classmethod
    def tree_unflatten(cls, node: Any, values: Iterable[Any]) -> Any:
        """Returns a dict of these values."""
        kind, keys = node
        return kind(zip(keys, values, strict=True))


def _with_paths(features: PaddedFeatures) -> tuple[list[Any], Any]:
    values, node, keys = features.tree_flatten()
    paths = [jax.tree_util.DictKey(k) for k in keys]
    return list(zip(paths, values, strict=True)), node


jax.tree_util.register_pytree_with_keys(
    PaddedFeatures, _with_paths, PaddedFeatures.tree_unflatten
)


@functools.cache
def _register_in_keras() -> None:
    """Makes functions of Keras treat these features as a node of pytrees."""
    keras_models.register_node(PaddedFeatures)
