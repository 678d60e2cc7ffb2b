"""Features of prediction that also know which of their rows are padding."""

import collections
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import jax

from keras_tpu_estimator.engine.program.steps import IS_PADDING
from keras_tpu_estimator.ground.tracing import keras_internals


class PaddedFeatures(dict[str, Any]):
    """A dict with one more key, `"is_padding"`, for who asks for it.

    It is there in `in`, `[]`, `get` and `pop`, and does not appear in
    iteration, `len`, copies, or any function of nests: those of JAX and Keras
    take it for the dict that it is made of, and return such a one.

    Args:
        features: The features.
        is_padding: Booleans of shape `[batch]`.

    Attributes:
        is_asked: Whether anybody has asked for it.

    Example:

    >>> features = PaddedFeatures({"x": 1}, is_padding=False)
    >>> "is_padding" in features, features.get("is_padding"), list(features)
    (True, False, ['x'])
    >>> type(jax.tree.map(abs, features)).__name__
    'dict'
    """

    def __init__(self, features: Mapping[str, Any], is_padding: Any):
        super().__init__(features)
        self.is_asked = False
        self._is_padding = is_padding
        # Its keys have an order of their own in nests, too.
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
        """The value of a key, or `default`."""
        return self[key] if key in self else default

    def pop(self, key: str, *default: Any) -> Any:
        """The same, which is then removed, unless it is `is_padding`."""
        if key in self.keys() or key != IS_PADDING:
            return super().pop(key, *default)
        return self[key]

    def tree_flatten(self) -> tuple[list[Any], Any, list[str]]:
        """Values, what `tree_unflatten` needs, and the keys, as Keras asks."""
        keys = list(self)
        if self._type is dict:
            keys.sort()
        return [self[key] for key in keys], (self._type, tuple(keys)), keys

    @classmethod
    def tree_unflatten(cls, node: Any, values: Iterable[Any]) -> Any:
        """A dict of these values."""
        kind, keys = node
        return kind(zip(keys, values, strict=True))


def _with_paths(features: PaddedFeatures) -> tuple[list[Any], Any]:
    values, node, keys = features.tree_flatten()
    paths = [jax.tree_util.DictKey(k) for k in keys]
    return list(zip(paths, values, strict=True)), node


jax.tree_util.register_pytree_with_keys(
    PaddedFeatures, _with_paths, PaddedFeatures.tree_unflatten
)
keras_internals.register_node(PaddedFeatures)
