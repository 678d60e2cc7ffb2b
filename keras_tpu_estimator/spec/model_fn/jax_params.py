"""Parameters of flax, equinox, haiku or plain JAX as variables."""

import functools
from collections.abc import Callable
from typing import Any
from typing import TypeVar

import jax
import jax.numpy as jnp

from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.suggestions import did_you_mean
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.ground.tracing import keras_internals
from keras_tpu_estimator.ground.tracing.array_trees import Leaf
from keras_tpu_estimator.ground.tracing.array_trees import Parts
from keras_tpu_estimator.ground.tracing.array_trees import as_leaf
from keras_tpu_estimator.ground.tracing.array_trees import as_value
from keras_tpu_estimator.ground.tracing.array_trees import leaves_of
from keras_tpu_estimator.ground.tracing.array_trees import make_variable
from keras_tpu_estimator.ground.tracing.array_trees import split_path
from keras_tpu_estimator.ground.tracing.array_trees import with_values
from keras_tpu_estimator.ground.tracing.key_variable import is_key
from keras_tpu_estimator.ground.tracing.tree_makers import maker
from keras_tpu_estimator.ground.tracing.variables import scope_for

Tree = TypeVar("Tree")


def jax_params(
    name: str,
    init: Tree | Callable[[], Tree] | Callable[[jax.Array], Tree],
    trainable: Any = True,
) -> Tree:
    """Makes variables of a nest of arrays, and returns it with their values.

    For use in a `model_fn`: models of flax, equinox, haiku or plain JAX are
    trained, saved, laid out on the cores and exported as layers of Keras are.
    Each array becomes the variable `name/path/in/the/nest`. What is no array,
    such as a function or a number of Python, stays as it is.

    Args:
        name: The path that the variables go below, such as "encoder".
        init: Any nest that JAX knows: dicts, lists, dataclasses, a module of
            equinox, a module or a state of flax.nnx. Or a function that makes
            it, of a PRNG key or of no argument, which is traced in each call of
            `model_fn`; initial values are computed only when they are needed.
        trainable: Whether floating-point arrays are trained: `True` (the
            default), `False`, or a nest of both that `init` begins with, as
            `in_axes` of `jax.vmap` is: `{"params": True, "batch_stats":
            False}`. Integers, booleans and PRNG keys are not trained, nor are
            variables of nnx that are no `nnx.Param`.

    Returns:
        A nest like that of `init`, with tensors of this call in place of the
        arrays, in their own dtypes. What is to last of changes to it is given
        to `assign_jax_params`. PRNG keys differ between cores.

    Raises:
        ValueError: It is called outside a `model_fn`, `name` is empty, there
            are no arrays, `trainable` does not fit, or complex numbers are to
            be trained.

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
    make = maker(init, keras_internals.default_seed)
    tree = make()
    leaves = leaves_of(tree)
    # For variables that a trace inside of this one has made, such as that of
    # `jax.checkpoint`, whose tensors end with it.
    again = functools.cache(lambda: leaves_of(make()))
    if not any(leaf.is_array for leaf in leaves):
        raise ValueError(
            "`init` should be, or make, a nest with arrays in it. Received: "
            f"{shown(tree)}."
        )
    values, made = [], {}
    flags = _flags(trainable, tree)
    for number, leaf in enumerate(leaves):
        if not leaf.is_array:
            values.append(leaf.value)
            continue
        if not leaf.is_again:
            trained = flags[number] and not leaf.is_state
            _check_trainable(leaf, trained, name)
            path = _path(parents, leaf)
            is_given = path in scope.values and path not in scope.known
            made[leaf.parts] = make_variable(
                leaf,
                parents,
                trained,
                initial=functools.partial(_value, again, number)
                if is_given
                else None,
            )
        value = scope.get_current_value(made[leaf.parts])
        values.append(as_leaf(value, leaf.key_impl))
    nest: Tree = with_values(tree, values)
    return nest


def assign_jax_params(name: str, tree: Nest) -> None:
    """Has what `jax_params` made keep the values of a nest.

    For moving averages, counters and keys that a step changes. In training they
    are kept for good; in evaluation and prediction for the rest of the call.
    What cores have assigned is combined as the changes of layers are: the mean
    of floating-point numbers, and the first core's of all else.

    Args:
        name: What `jax_params` was called with.
        tree: What that returned, changed, or a part of it under the same keys.
            Arrays that were not changed are left alone.

    Raises:
        ValueError: It is called outside a `model_fn`, an array has no variable
            in this call of `model_fn`, or another shape than that.

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
                "Each array of `tree` should be one of those that `jax_params` "
                f"made under the same name. Received one for {path!r}, which "
                f"this call of model_fn has not made.{question}"
            )
        value = as_value(leaf.value)
        if value is scope.values.get(path):
            continue
        if tuple(value.shape) != tuple(variable.shape):
            raise ValueError(
                f"What is assigned to {path!r} should have its shape "
                f"{tuple(variable.shape)}. Received: {shown(value)}."
            )
        variable.assign(value)


def _parents(name: str) -> Parts:
    parts = split_path(str(name))
    if not parts:
        raise ValueError(
            f"`name` should be a path such as 'encoder'. Received: {name!r}"
        )
    return parts


def _path(parents: Parts, leaf: Leaf) -> str:
    """The path of the variable of an array, in the scopes that are open."""
    inside = split_path(keras_internals.name_path())
    return leaf.path_below((*inside, *parents))


def _value(leaves: Callable[[], list[Leaf]], number: int) -> Any:
    return leaves()[number].value


def _flags(trainable: Any, tree: Nest) -> list[bool]:
    """For each leaf whether it is to be trained."""
    try:
        flags = jax.tree.leaves(jax.tree.broadcast(trainable, tree))
    except ValueError as error:
        raise ValueError(
            "`trainable` should be True, False, or a nest of both that the "
            "nest of `init` begins with, such as {'params': True, "
            f"'batch_stats': False}}. Received: {shown(trainable)}. {error}"
        ) from None
    wrong = [flag for flag in flags if not isinstance(flag, bool)]
    if wrong:
        raise ValueError(
            "`trainable` should say True or False. Received: "
            f"{shown(wrong[0])}."
        )
    return flags


def _check_trainable(leaf: Leaf, trainable: bool, name: str) -> None:
    """Checks that what is to be trained is not complex."""
    if is_key(leaf.value) or not trainable:
        return
    if jnp.issubdtype(leaf.value.dtype, jnp.complexfloating):
        raise ValueError(
            "Optimizers train real numbers. Received: "
            f"{shown(leaf.value)} at {'/'.join((name, *leaf.parts))!r}. Keep "
            "the real and the imaginary part as two arrays, or pass "
            "`trainable=False`."
        )
