"""Arguments of host functions: tensors and other values.

Besides tensors, a `metric_fn` may receive the number of classes, `None` or a dict of
settings. Only tensors leave the devices. The function gets all other values as
`model_fn` passed them.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax

from keras_tpu_estimator.api.model_fn.spec_checks import HostFunction
from keras_tpu_estimator.base.common.types import PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class FilledIn:
    """A host function that is called with its tensors only.

    `arguments` is a list or dict of all its arguments, which are pytrees of any values.
    """

    function: Callable[..., Any]
    arguments: PyTree

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function with tensors as in `only_tensors`, and other values."""
        tensors = iter(jax.tree.leaves(kwargs or list(args)))
        tree = map_arguments(
            lambda value: next(tensors) if _is_tensor(value) else value,
            self.arguments,
        )
        return HostFunction(self.function, self.arguments).call(tree)


def only_tensors(host: HostFunction) -> HostFunction:
    """Returns a host function whose arguments are tensors.

    In its pytree of tensors, `None` replaces each other value. The pytree is empty if
    there is no tensor.
    """
    arguments = host.tensors
    if all(map(_is_tensor, _leaves(arguments))):
        return host
    tensors = map_arguments(
        lambda value: value if _is_tensor(value) else None, arguments
    )
    filled = FilledIn(host.function, arguments)
    return HostFunction(filled, tensors if jax.tree.leaves(tensors) else [])


def map_arguments(function: Callable[[Any], Any], arguments: PyTree) -> PyTree:
    """Maps a function over arguments, including those that are `None`."""
    mapped: PyTree = jax.tree.map(function, arguments, is_leaf=_is_none)
    return mapped


def names_of(function: Callable[..., Any], arguments: PyTree) -> PyTree:
    """Returns the pytree of the names of a function's arguments."""
    function = _users(function)
    if isinstance(arguments, Mapping):
        names = {name: str(name) for name in arguments}
    else:
        names = dict(enumerate(_positional(function, len(arguments))))

    def path_name(path: Any, leaf: Any) -> str:
        del leaf
        first, *suffix = path
        key = first.key if isinstance(arguments, Mapping) else first.idx
        return names[key] + jax.tree_util.keystr(tuple(suffix))

    named: PyTree = jax.tree_util.tree_map_with_path(path_name, arguments)
    return named


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of the user's function."""
    original = _users(function)
    return str(getattr(original, "__name__", original))


def _users(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, FilledIn):
        function = function.function
    return function


def _positional(function: Callable[..., Any], count: int) -> list[str]:
    """Returns the names of the first arguments of a function."""
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            remaining = count - len(names)
            names += [f"{parameter.name}[{number}]" for number in range(remaining)]
        names.append(parameter.name)
    return names[:count]


def _leaves(arguments: PyTree) -> list[Any]:
    leaves: list[Any] = jax.tree.leaves(arguments, is_leaf=_is_none)
    return leaves


def _is_none(value: Any) -> bool:
    return value is None


def _is_tensor(value: Any) -> bool:
    import tensorflow as tf

    return bool(tf.is_tensor(value))
