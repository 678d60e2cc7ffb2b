"""The division of a batch into micro-batches.

Only one of them is in memory at a time. The results are those of the undivided
batch: means of scalars and of their gradients, sums of integers, and all rows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.base.tracing.analyses import varying
from keras_tpu_estimator.base.tracing.gradient_requests import pull_back
from keras_tpu_estimator.base.tracing.variables import ArraysByPath
from keras_tpu_estimator.engine.inputs.unbatched import is_unbatched, named_leaves
from keras_tpu_estimator.engine.program.steps import StepInput

# There is no mesh axis: nothing is reduced over micro-batches while one of them
# runs.
_MICRO_BATCHES = "micro-batches"

# The arguments are values by path, features and labels. The result is a list of
# scalars to differentiate; a pytree that is averaged over micro-batches, one
# whose rows are concatenated, and assigned values by path.
Forward: TypeAlias = Callable[
    [PyTree, ArraysByPath, PyTree],
    tuple[list[jax.Array], tuple[PyTree, PyTree, ArraysByPath]],
]


def check_cut(example: StepInput, count: int) -> None:
    """Checks that a batch can be divided into micro-batches."""
    if count == 1:
        return
    leaves = named_leaves(example.features, example.labels)
    shared = [name for name, leaf in leaves if is_unbatched(leaf)]
    if shared:
        raise ValueError(
            "With `micro_batches` all tensors must have the batch as their "
            f"first axis. Received micro_batches={count} and tensors without "
            f"it: {shared}. Repeat them for each example, pass them in "
            "params, or set micro_batches=1."
        )
    batch_size = example.additional["batch_size"]
    if batch_size % count:
        raise ValueError(
            "The batch of each core must be divisible by `micro_batches`. "
            f"Received: {batch_size} examples for each core and "
            f"micro_batches={count}. Choose another `train_batch_size`, or "
            "drop a last, smaller batch with batch(..., drop_remainder=True)."
        )


def with_features(
    batch: tuple[Features, Labels], features: Mapping[str, Any]
) -> tuple[Features, Labels]:
    """Returns a batch with other values of some features, if given."""
    all_features, labels = batch
    return ({**all_features, **features} if features else all_features), labels


def over_micro_batches(
    function: Forward, count: int, by: Sequence[str] = ()
) -> Forward:
    """Returns a function of a whole batch that calls another on `count` micro-batches,
    or the function itself for 1; `by` are keys of features to differentiate by.

    Each micro-batch reads the assignments of the previous one. Gradients are computed
    together with the scalars, in one pass, and do not flow through assignments. They
    can be differentiated again.
    """
    if count == 1:
        return function

    @jax.custom_vjp
    def over_batch(
        differentiated: PyTree, values: ArraysByPath, batch: PyTree
    ) -> PyTree:
        def part(values: ArraysByPath, batch: PyTree) -> PyTree:
            scalars, (means, *outputs) = function(differentiated, values, batch)
            return (scalars, means), *outputs

        (scalars, means), *outputs = _scan(part, count, values, batch)
        return scalars, (means, *outputs)

    def forward(differentiated: PyTree, values: ArraysByPath, batch: PyTree) -> PyTree:
        def part(values: ArraysByPath, batch: PyTree) -> PyTree:
            def with_scalars(inputs: PyTree) -> PyTree:
                differentiated, features = inputs
                current = with_features(batch, features)
                scalars, outputs = function(differentiated, values, current)
                return scalars, (scalars, outputs)

            features = {key: batch[0][key] for key in by}
            gradients, (scalars, (means, rows, updates)) = pull_back(
                with_scalars, (differentiated, features)
            )
            by_values = [gradient for gradient, _ in gradients]
            by_rows = [gradient for _, gradient in gradients]
            return (by_values, scalars, means), (by_rows, rows), updates

        (by_values, scalars, means), (by_rows, rows), updates = _scan(
            part, count, values, batch
        )
        # The scalars are means over micro-batches.
        by_rows = jax.tree.map(lambda leaf: leaf / count, by_rows)
        # The remaining parts of the batch have no gradients.
        nothing = jax.tree.map(lambda leaf: None, batch)
        return (scalars, (means, rows, updates)), (by_values, by_rows, nothing)

    def backward(residuals: PyTree, cotangents: PyTree) -> PyTree:
        by_values, by_rows, nothing = residuals
        scalars, _ = cotangents
        of_batch = with_features(nothing, _sum(scalars, by_rows))
        return _sum(scalars, by_values), None, of_batch

    over_batch.defvjp(forward, backward)
    return over_batch


def _sum(scalars: Sequence[jax.Array], trees: Sequence[PyTree]) -> PyTree:
    """Returns the sum of pytrees, each times a scalar."""
    products = [
        jax.tree.map(lambda leaf, c=scalar: c.astype(leaf.dtype) * leaf, tree)
        for scalar, tree in zip(scalars, trees, strict=True)
    ]
    return jax.tree.map(lambda *leaves: sum(leaves), *products)


def _scan(
    part: Callable[[ArraysByPath, PyTree], tuple[PyTree, PyTree, ArraysByPath]],
    count: int,
    values: ArraysByPath,
    batch: PyTree,
) -> tuple[PyTree, PyTree, ArraysByPath]:
    """Averages, concatenates and carries the results of `part`."""
    parts = jax.tree.map(lambda leaf: leaf.reshape(count, -1, *leaf.shape[1:]), batch)
    first = jax.tree.map(lambda leaf: leaf[0], parts)
    likes, _, assigned = jax.eval_shape(part, values, first)
    adds = _are_added(part, values, first, likes, assigned)

    def body(carry: PyTree, batch: PyTree) -> PyTree:
        state, sums = carry
        summands, rows, updates = part({**values, **state}, batch)
        state = {
            path: jax.lax.stop_gradient(value).astype(assigned[path].dtype)
            for path, value in updates.items()
        }
        return (state, jax.tree.map(_with, sums, summands, adds)), rows

    # `jax.checkpoint` makes a second derivative keep only one micro-batch in memory.
    (updates, sums), rows = jax.lax.scan(
        jax.checkpoint(body),
        (
            {path: values[path] for path in assigned},
            jax.tree.map(_zero, likes),
        ),
        parts,
    )
    means = jax.tree.map(
        lambda total, like: _of_batch(total, count).astype(like.dtype),
        sums,
        likes,
    )
    joined = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows)
    return means, joined, updates


def _are_added(
    part: Callable[[ArraysByPath, PyTree], tuple[PyTree, PyTree, ArraysByPath]],
    values: ArraysByPath,
    batch: PyTree,
    likes: PyTree,
    assigned: ArraysByPath,
) -> PyTree:
    """Returns which integers differ between micro-batches and so are added: a count of
    examples is, the number of a step is not.
    """
    if all(map(_is_inexact, jax.tree.leaves(likes))):
        return jax.tree.map(lambda like: True, likes)
    traced, outputs = jax.make_jaxpr(part, return_shape=True)(values, batch)
    inputs = [
        *(path in assigned for path in sorted(values)),
        *(True for _ in jax.tree.leaves(batch)),
    ]
    differing = varying(traced, inputs, (_MICRO_BATCHES,))
    differs: PyTree = jax.tree.unflatten(jax.tree.structure(outputs), differing)
    return differs[0]


def _is_inexact(like: jax.Array | jax.ShapeDtypeStruct) -> bool:
    return jnp.issubdtype(like.dtype, jnp.inexact)


def _zero(like: jax.ShapeDtypeStruct) -> jax.Array:
    """Returns the zero of a sum: small floats are summed in float32."""
    if not _is_inexact(like):
        return jnp.zeros(like.shape, like.dtype)
    return jnp.zeros(like.shape, jnp.promote_types(like.dtype, jnp.float32))


def _with(total: jax.Array, value: jax.Array, adds: bool) -> jax.Array:
    """Adds the value of one more micro-batch to a total."""
    if total.dtype == bool:
        return total | value
    return total + value if adds or _is_inexact(total) else value


def _of_batch(total: jax.Array, count: int) -> jax.Array:
    """Returns the batch's value: a mean, except for integers and booleans."""
    return total / count if _is_inexact(total) else total
