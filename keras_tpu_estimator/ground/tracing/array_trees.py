"""Nests of arrays, such as a model of flax or equinox, as variables by path.

The path of a leaf is that of `jax.tree_util`, with a slash between its keys:
names of attributes, keys of dicts, and positions in lists.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.ground.tracing import keras_internals
from keras_tpu_estimator.ground.tracing.key_variable import KeyVariable, is_key
from keras_tpu_estimator.ground.tracing.variables import current_scope

Parts = tuple[str, ...]
Tree = TypeVar("Tree")


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A leaf of a nest.

    Attributes:
        parts: Its path.
        value: An array, or anything else.
        keys: The keys of `jax.tree_util` that lead to it.
        is_state: Whether flax says that it is no parameter.
        is_again: Whether a variable of flax that was there before holds it.
            Then its path is that of the first place.
    """

    parts: Parts
    value: Any
    keys: tuple[Any, ...] = ()
    is_state: bool = False
    is_again: bool = False

    @property
    def is_array(self) -> bool:
        """Whether it is an array, of numbers or of keys."""
        return isinstance(self.value, jax.Array | np.ndarray)

    @property
    def is_described(self) -> bool:
        """Whether it is an array, or the shape and the dtype of one."""
        return self.is_array or isinstance(self.value, jax.ShapeDtypeStruct)

    @property
    def key_impl(self) -> Any:
        """What makes numbers of it if it is a PRNG key, or `None`."""
        if not is_key(self.value):
            return None
        if self.is_array:
            return jax.random.key_impl(self.value)
        found: list[Any] = []
        # JAX has no such function of a key's dtype, except in a trace.
        jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), self.value)
        return found[0]

    def path_below(self, parents: Sequence[str]) -> str:
        """The path of the variable that holds the array.

        Args:
            parents: The parts of the path before the leaf's own parts.
        """
        return "/".join((*parents, *self.parts))


def leaves_of(tree: Nest, positions: bool = True) -> list[Leaf]:
    """The leaves of a nest, in JAX's order.

    A variable of flax, or what it wraps an array with, has the path of the
    array.

    Args:
        tree: The nest.
        positions: Whether positions in lists and tuples are parts of paths.
            Defaults to `True`.

    Example:

    >>> [each.parts for each in leaves_of({"dense": [np.zeros(2), None, 1]})]
    [('dense', '0'), ('dense', '2')]
    """
    found: list[Leaf] = []
    places: dict[int, Parts] = {}
    nodes, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_box)
    for path, node in nodes:
        parts = _parts(path, positions)
        if not _is_box(node):
            found.append(Leaf(parts, node, path))
            continue
        is_again = id(node) in places
        parts = places.setdefault(id(node), parts)
        inner, _ = jax.tree_util.tree_flatten_with_path(node)
        for own_path, value in inner:
            own = _parts(own_path, positions) if len(inner) > 1 else ()
            keys = (*path, *own_path) if len(inner) > 1 else path
            found.append(Leaf((*parts, *own), value, keys, _is_state(node), is_again))
    return found


def with_values(tree: Tree, values: Sequence[Any]) -> Tree:
    """Returns a pytree of the same structure with other leaves.

    A variable of flax that is in several places stays one variable.

    Args:
        tree: The pytree.
        values: A value for each of `leaves_of(tree)`.

    Example:

    >>> with_values({"dense": [np.zeros(2), None, 1]}, [2, 3])
    {'dense': [2, None, 3]}
    """
    left = iter(values)
    boxes: dict[int, Any] = {}
    nodes, structure = jax.tree.flatten(tree, is_leaf=_is_box)
    made = []
    for node in nodes:
        if not _is_box(node):
            made.append(next(left))
            continue
        old, inner = jax.tree.flatten(node)
        own = [next(left) for _ in old]
        if id(node) not in boxes:
            boxes[id(node)] = jax.tree.unflatten(inner, own)
        made.append(boxes[id(node)])
    nest: Tree = jax.tree.unflatten(structure, made)
    return nest


def make_variable(
    leaf: Leaf,
    parents: Sequence[str],
    trainable: bool,
    of: type[keras.Variable] = keras.Variable,
    initial: Callable[[], Any] | None = None,
) -> keras.Variable:
    """Makes the variable of an array, in the name scope that is open.

    Args:
        leaf: The array is its initial value.
        parents: What comes before its path.
        trainable: Whether it is trained, if it has floating-point numbers.
        of: The class of the variable, unless it holds a key. Defaults to
            `keras.Variable`.
        initial: What makes the initial value when that is wanted. Defaults to
            `None`, for the array itself.
    """
    *scopes, name = *parents, *leaf.parts
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        value = as_value(leaf.value)
        dtype = jax.dtypes.canonicalize_dtype(value.dtype)
        settings: dict[str, Any] = {
            "dtype": keras.backend.standardize_dtype(dtype),
            "trainable": trainable and jnp.issubdtype(dtype, jnp.floating),
            "name": name,
        }
        kind = of if leaf.key_impl is None else KeyVariable
        if initial is None:
            return kind(value, **settings)
        return kind(
            lambda shape, dtype=None: as_value(initial()),
            shape=value.shape,
            **settings,
        )


def as_leaf(value: jax.Array, key_impl: Any) -> jax.Array:
    """The value of a variable, as the leaf that it was made of.

    Args:
        value: What the variable holds.
        key_impl: As the leaf had it.
    """
    if key_impl is None:
        return value
    return jax.random.wrap_key_data(value, impl=key_impl)


def as_value(leaf: Any) -> Any:
    """The other way round: what a variable holds of a leaf."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def split_path(path: str) -> Parts:
    """The parts of a path, which may begin and end with slashes."""
    return tuple(part for part in path.split("/") if part)


def _parts(path: Sequence[Any], positions: bool) -> Parts:
    kept = [
        key
        for key in path
        if positions or not isinstance(key, jax.tree_util.SequenceKey)
    ]
    return tuple(part for key in kept for part in split_path(_text(key)))


def _text(key: Any) -> str:
    """What a key of `jax.tree_util` is called."""
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _is_box(node: object) -> bool:
    """Whether a node is flax's way to say more about an array."""
    return any(name in ("Variable", "AxisMetadata") for name in flax_classes(node))


def _is_state(node: object) -> bool:
    """Whether it is a variable of nnx that is no parameter."""
    names = list(flax_classes(node))
    return "Variable" in names and "Param" not in names


def flax_classes(node: object) -> Iterator[str]:
    """Yields the classes of flax that it is of, without importing flax."""
    for cls in type(node).__mro__:
        if cls.__module__.partition(".")[0] == "flax":
            yield cls.__name__


def _names_in_layers(tree: Nest) -> list[str]:
    """The names of weights of Keras's layers for models of JAX.

    They take numbers of Python for arrays.
    """
    numbers = (jax.Array, np.ndarray, np.generic, bool, int, float)
    return [
        ".".join(leaf.parts) or "value"
        for leaf in leaves_of(tree)
        if isinstance(leaf.value, numbers)
    ]


# Such layers may be made before, and outside of, any `model_fn`.
keras_internals.around_jax_layers(lambda: current_scope() is not None, _names_in_layers)
