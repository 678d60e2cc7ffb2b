"""Parameters of flax, equinox, haiku or plain JAX models as variables."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from keras_tpu_estimator.base.common.field_checks import did_you_mean
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.tracing.array_trees import (
    Leaf,
    Parts,
    as_leaf,
    as_value,
    leaves_of,
    make_variable,
    maker,
    split_path,
    with_values,
)
from keras_tpu_estimator.base.tracing.variable_classes import is_key
from keras_tpu_estimator.base.tracing.variables import scope_for
from keras_tpu_estimator.base.upstream import keras_random, keras_state

Tree = TypeVar("Tree")


def jax_params(
    name: str,
    init: Tree | Callable[[], Tree] | Callable[[jax.Array], Tree],
    trainable: Any = True,
) -> Tree:
    """Creates variables from a pytree of arrays, and returns their values.

    For use in a `model_fn`: models of flax, equinox, haiku or plain JAX are
    trained, saved, sharded and exported like Keras layers. Each array becomes
    the variable `name/path/in/the/pytree`. Other leaves, such as functions and
    Python numbers, stay unchanged.

    Args:
        name: The path prefix of the variables, such as "encoder".
        init: A pytree: dicts, lists, dataclasses, an equinox module, a module
            or a state of flax.nnx. Or a function that returns it, with a PRNG
            key as its argument or without arguments. Each call of `model_fn`
            traces the function; initial values are computed only when they are
            needed.
        trainable: Whether floating-point arrays are trained: `True` (the
            default), `False`, or a pytree prefix of both, like `in_axes` of
            `jax.vmap`: `{"params": True, "batch_stats": False}`. Integers,
            booleans, PRNG keys, and nnx variables other than `nnx.Param` are
            not trained.

    Returns:
        A pytree like `init`, with tensors of this call in place of the arrays,
        in their own dtypes. Pass changed values to `assign_jax_params` to keep
        them. PRNG keys differ between replicas.

    Raises:
        ValueError: The call is outside a `model_fn`, `name` is empty, `init`
            has no arrays, `trainable` does not fit, or complex numbers are
            trained.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import jax, jax.numpy as jnp
    >>> def init(key):
    ...     return {"w": jax.random.normal(key, (3, 1)), "b": jnp.zeros(1)}
    >>> def model_fn(features, labels, mode, params):
    ...     p = kte.jax_params("linear", init)
    ...     y = features @ p["w"] + p["b"]
    ...     loss = jnp.mean((y - labels) ** 2)
    ...     optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    ...     return kte.TPUEstimatorSpec(
    ...         mode, loss=loss, train_op=optimizer.minimize(loss))
    """
    scope = scope_for("jax_params")
    parents = _parents(name)
    make = maker(init, keras_random.default_seed)
    tree = make()
    leaves = leaves_of(tree)
    # Variables created in an inner trace, such as that of `jax.checkpoint`,
    # whose tensors are only valid in it.
    outer_leaves = functools.cache(lambda: leaves_of(make()))
    if not any(leaf.is_array for leaf in leaves):
        raise ValueError(
            f"`init` must be, or return, a pytree with arrays. Received: {shown(tree)}."
        )
    values, variables = [], {}
    flags = _flags(trainable, tree)
    for number, leaf in enumerate(leaves):
        if not leaf.is_array:
            values.append(leaf.value)
            continue
        if not leaf.is_again:
            trained = flags[number] and not leaf.is_state
            _check_trainable(leaf, trained, name)
            path = _path(parents, leaf)
            is_given = path in scope.values and path not in scope.program_variables
            variables[leaf.parts] = make_variable(
                leaf,
                parents,
                trained,
                initial=functools.partial(_value, outer_leaves, number)
                if is_given
                else None,
            )
        value = scope.get_current_value(variables[leaf.parts])
        values.append(as_leaf(value, leaf.key_impl))
    pytree: Tree = with_values(tree, values)
    return pytree


def assign_jax_params(name: str, tree: PyTree) -> None:
    """Assigns the values of a pytree to variables of `jax_params`.

    For moving averages, counters and keys that change in a step. In training
    the values are kept permanently; in evaluation and prediction for the rest
    of the call. Values of several replicas are combined like those of layers:
    floating-point numbers are averaged, and other values are those of the first
    replica.

    Args:
        name: The `name` passed to `jax_params`.
        tree: The result of `jax_params` with changed values, or a part of it
            under the same keys. Unchanged arrays are ignored.

    Raises:
        ValueError: The call is outside a `model_fn`, or an array has no
            variable in this call of `model_fn`, or not its shape.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import jax.numpy as jnp
    >>> def seen_so_far(features):
    ...     seen = kte.jax_params("seen", {"mean": jnp.zeros(3)}, False)
    ...     mean = 0.9 * seen["mean"] + 0.1 * jnp.mean(features, axis=0)
    ...     kte.assign_jax_params("seen", {"mean": mean})
    ...     return mean
    """
    scope = scope_for("assign_jax_params")
    parents = _parents(name)
    for leaf in leaves_of(tree):
        if not leaf.is_array:
            continue
        path = _path(parents, leaf)
        variable = scope.objects.get(path)
        if variable is None:
            question = did_you_mean(path, scope.objects)
            raise ValueError(
                "Each array of `tree` must be one that `jax_params` returned "
                f"under the same name. Received one for {path!r}, which this "
                f"call of model_fn has not created.{question}"
            )
        value = as_value(leaf.value)
        if value is scope.values.get(path):
            continue
        if tuple(value.shape) != tuple(variable.shape):
            raise ValueError(
                f"The value for {path!r} must have its shape "
                f"{tuple(variable.shape)}. Received: {shown(value)}."
            )
        variable.assign(value)


def _parents(name: str) -> Parts:
    parts = split_path(str(name))
    if not parts:
        raise ValueError(f"`name` must be a path such as 'encoder'. Received: {name!r}")
    return parts


def _path(parents: Parts, leaf: Leaf) -> str:
    """Returns the path of the variable of an array, in the open scopes."""
    inside = split_path(keras_state.name_path())
    return leaf.path_below((*inside, *parents))


def _value(leaves: Callable[[], list[Leaf]], number: int) -> Any:
    return leaves()[number].value


def _flags(trainable: Any, tree: PyTree) -> list[bool]:
    """Returns for each leaf whether it is trained."""
    try:
        flags = jax.tree.leaves(jax.tree.broadcast(trainable, tree))
    except ValueError as error:
        raise ValueError(
            "`trainable` must be True, False, or a pytree prefix of both for "
            "`init`, such as {'params': True, 'batch_stats': False}. "
            f"Received: {shown(trainable)}. {error}"
        ) from None
    wrong = [flag for flag in flags if not isinstance(flag, bool)]
    if wrong:
        raise ValueError(
            "`trainable` must contain only True and False. Received: "
            f"{shown(wrong[0])}."
        )
    return flags


def _check_trainable(leaf: Leaf, trainable: bool, name: str) -> None:
    """Checks that no complex numbers are trained."""
    if is_key(leaf.value) or not trainable:
        return
    if jnp.issubdtype(leaf.value.dtype, jnp.complexfloating):
        raise ValueError(
            f"Optimizers train real numbers. Received: {shown(leaf.value)} at "
            f"{'/'.join((name, *leaf.parts))!r}. Store the real and the "
            "imaginary part as two arrays, or pass `trainable=False`."
        )
