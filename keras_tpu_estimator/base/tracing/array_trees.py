"""Pytrees of arrays, such as models of flax or equinox, as variables by path.

The path of a leaf is that of `jax.tree_util`, with slashes between its keys: names of
attributes, keys of dicts, and positions in lists.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.tracing.variable_classes import KeyVariable, is_key

Parts = tuple[str, ...]
Tree = TypeVar("Tree")


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A leaf of a pytree: an array or another object.

    Attributes:
        parts: Its path.
        keys: The keys of `jax.tree_util` that lead to it.
        is_state: Whether flax marks it as state instead of a parameter.
        is_again: Whether it belongs to a flax variable that occurred before. Its path
            is then that of the first occurrence.
    """

    parts: Parts
    value: Any
    keys: tuple[Any, ...] = ()
    is_state: bool = False
    is_again: bool = False

    @property
    def is_array(self) -> bool:
        """Whether it is an array of numbers or keys."""
        return isinstance(self.value, jax.Array | np.ndarray)

    @property
    def is_described(self) -> bool:
        """Whether it is an array, or the shape and dtype of one."""
        return self.is_array or isinstance(self.value, jax.ShapeDtypeStruct)

    @property
    def key_impl(self) -> Any:
        """The generator of a PRNG key, or `None` for other leaves."""
        if not is_key(self.value):
            return None
        if self.is_array:
            return jax.random.key_impl(self.value)
        implementations: list[Any] = []
        # JAX returns the generator of a key's dtype only in a trace.
        jax.eval_shape(
            lambda key: implementations.append(jax.random.key_impl(key)), self.value
        )
        return implementations[0]

    def path_below(self, parents: Sequence[str]) -> str:
        """Returns the path of the variable that holds the array, below `parents`."""
        return "/".join((*parents, *self.parts))


def leaves_of(tree: PyTree, positions: bool = True) -> list[Leaf]:
    """Returns the leaves of a pytree, in JAX's order.

    A flax variable or box around an array has the path of the array.

    Args:
        positions: Whether positions in lists and tuples are parts of paths.

    >>> [each.parts for each in leaves_of({"dense": [np.zeros(2), None, 1]})]
    [('dense', '0'), ('dense', '2')]
    """
    leaves: list[Leaf] = []
    parts_by_box: dict[int, Parts] = {}
    nodes, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_box)
    for path, node in nodes:
        parts = _parts(path, positions)
        if not _is_box(node):
            leaves.append(Leaf(parts, node, path))
            continue
        is_again = id(node) in parts_by_box
        parts = parts_by_box.setdefault(id(node), parts)
        inner, _ = jax.tree_util.tree_flatten_with_path(node)
        for inner_path, value in inner:
            inner_parts = _parts(inner_path, positions) if len(inner) > 1 else ()
            keys = (*path, *inner_path) if len(inner) > 1 else path
            leaves.append(
                Leaf((*parts, *inner_parts), value, keys, _is_state(node), is_again)
            )
    return leaves


def with_values(tree: Tree, values: Sequence[Any]) -> Tree:
    """Returns a pytree of the same structure with other values of `leaves_of(tree)`.

    A flax variable that occurs several times remains one variable.
    """
    remaining = iter(values)
    boxes: dict[int, Any] = {}
    nodes, structure = jax.tree.flatten(tree, is_leaf=_is_box)
    new_nodes = []
    for node in nodes:
        if not _is_box(node):
            new_nodes.append(next(remaining))
            continue
        old, inner = jax.tree.flatten(node)
        inner_values = [next(remaining) for _ in old]
        if id(node) not in boxes:
            boxes[id(node)] = jax.tree.unflatten(inner, inner_values)
        new_nodes.append(boxes[id(node)])
    pytree: Tree = jax.tree.unflatten(structure, new_nodes)
    return pytree


def make_variable(
    leaf: Leaf,
    parents: Sequence[str],
    trainable: bool,
    of: type[keras.Variable] = keras.Variable,
    initial: Callable[[], Any] | None = None,
) -> keras.Variable:
    """Makes the variable of a leaf's array, in the current name scope.

    Args:
        parents: The path of its parents.
        trainable: Whether it is trained, if it has floating-point numbers.
        of: The class of the variable, unless it holds a key.
        initial: Returns the initial value when it is needed. Defaults to the array
            itself.
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
    """Converts the value of a variable to a leaf, with the leaf's generator of keys."""
    if key_impl is None:
        return value
    return jax.random.wrap_key_data(value, impl=key_impl)


def as_value(leaf: Any) -> Any:
    """Converts a leaf to the value of a variable."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def split_path(path: str) -> Parts:
    """Splits a path, which may begin and end with slashes."""
    return tuple(part for part in path.split("/") if part)


def _parts(path: Sequence[Any], positions: bool) -> Parts:
    keys = [
        key
        for key in path
        if positions or not isinstance(key, jax.tree_util.SequenceKey)
    ]
    return tuple(part for key in keys for part in split_path(_text(key)))


def _text(key: Any) -> str:
    """Returns the text of a key of `jax.tree_util`."""
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _is_box(node: object) -> bool:
    """Returns whether a node is a flax variable or box around an array."""
    return any(name in ("Variable", "AxisMetadata") for name in flax_classes(node))


def _is_state(node: object) -> bool:
    """Returns whether a node is an nnx variable other than a parameter."""
    names = list(flax_classes(node))
    return "Variable" in names and "Param" not in names


def flax_classes(node: object) -> Iterator[str]:
    """Yields the names of a node's flax classes, without importing flax."""
    for cls in type(node).__mro__:
        if cls.__module__.partition(".")[0] == "flax":
            yield cls.__name__


def names_in_layers(tree: PyTree) -> list[str]:
    """Returns the names of weights, including numbers, in Keras's JAX layers."""
    numbers = (jax.Array, np.ndarray, np.generic, bool, int, float)
    return [
        ".".join(leaf.parts) or "value"
        for leaf in leaves_of(tree)
        if isinstance(leaf.value, numbers)
    ]


def maker(init: Any, new_seed: Callable[[], int]) -> Callable[[], PyTree]:
    """Returns a function that makes the same pytree in each call.

    A flax.linen module raises a `ValueError`, because it has no arrays.

    Args:
        init: A pytree, or a function that makes one from a PRNG key or without
            arguments.
        new_seed: Returns a seed; called if `init` takes a key.
    """
    if not _is_function(init):
        return lambda: init
    if "Module" in flax_classes(init):
        raise ValueError(
            "The argument must be a pytree of arrays, or a function that makes one. "
            f"Received: {shown(init)}, a module of flax.linen, which has no "
            "arrays itself. Pass `lambda key: module.init(key, inputs)`."
        )
    if not _required(init):
        return lambda: init()
    seed = new_seed()
    return lambda: init(jax.random.key(seed))


def shapes_of(init: Any) -> PyTree:
    """Returns a function's pytree, with shapes and dtypes instead of arrays."""
    make = maker(init, lambda: 0)
    if not _is_function(init):
        return init
    trees: list[PyTree] = []

    def arrays() -> list[Any]:
        trees.append(make())
        return [leaf.value if leaf.is_array else None for leaf in leaves_of(trees[0])]

    shapes = jax.eval_shape(arrays)
    leaves = leaves_of(trees[0])
    return with_values(
        trees[0],
        [
            leaf.value if shape is None else shape
            for leaf, shape in zip(leaves, shapes, strict=True)
        ],
    )


def _is_function(init: Any) -> bool:
    """Returns whether `init` is a function; modules are callable pytrees."""
    return callable(init) and jax.tree_util.all_leaves([init])


def _required(function: Callable[..., Any]) -> list[str]:
    """Returns the arguments that must be passed by position."""
    by_position = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    return [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty and parameter.kind in by_position
    ]
