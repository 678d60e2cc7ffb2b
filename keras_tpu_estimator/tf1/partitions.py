"""Rows of variables that TensorFlow 1 would cut into partitions.

Variables are whole here, and so they are in checkpoints. Lookups with the
strategy "mod", the default of `tf.nn.embedding_lookup`, assign id `i` to
partition `i % n`, so the row of an id depends on the number of partitions.
"""

from collections.abc import Callable, Sequence
from typing import Any

# An attribute of variables: how many partitions their rows would have.
_PARTITIONS = "_partitions_of_rows"


def note_partitions(
    variable: Any, partitioner: Callable[..., Sequence[int]] | None
) -> None:
    """Notes on a whole variable how its rows would be partitioned."""
    shape = variable.shape
    if partitioner is None or not shape.rank or not shape.is_fully_defined():
        return
    dtype = variable.dtype.base_dtype
    setattr(variable, _PARTITIONS, partitioner(shape=shape, dtype=dtype)[0])


def looked_up_by_partition(original: Callable[..., Any]) -> Callable[..., Any]:
    """Adapts the function that all embedding lookups call."""

    def look_up(
        params: Any, ids: Any, partition_strategy: str = "mod", **settings: Any
    ) -> Any:
        return original(
            params,
            rows_of(params, ids, partition_strategy),
            partition_strategy=partition_strategy,
            **settings,
        )

    return look_up


def rows_of(params: Any, ids: Any, partition_strategy: str) -> Any:
    """Returns the rows of ids in a variable that is whole.

    Args:
        params: The variable, or a list of it or of several others.
        ids: A tensor of integers.
        partition_strategy: "mod" or "div", as in `tf.nn.embedding_lookup`.

    Returns:
        `ids` if there is one partition, or the strategy is "div".
    """
    import tensorflow as tf

    if isinstance(params, list | tuple):
        if len(params) != 1:
            return ids
        (params,) = params
    partitions = getattr(params, _PARTITIONS, 1)
    if partitions == 1 or partition_strategy == "div":
        return ids
    if partition_strategy != "mod":
        raise ValueError(
            '`partition_strategy` must be "mod" or "div". Received: '
            f"{partition_strategy!r}. Leave it out for the default."
        )
    ids = tf.convert_to_tensor(ids)
    # The first partitions have one row more if the rows are not a multiple.
    size, larger = divmod(params.shape.as_list()[0], partitions)
    partition = ids % partitions
    return partition * size + tf.minimum(partition, larger) + ids // partitions
