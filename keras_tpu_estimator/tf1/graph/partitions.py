"""Rows of variables that TensorFlow 1 would partition.

Variables and checkpoints have no partitions here. Lookups with the strategy "mod", the
default of `tf.nn.embedding_lookup`, assign id `i` to partition `i % n`, so the row of
an id depends on the number of partitions.
"""

from collections.abc import Callable, Sequence
from typing import Any

# The attribute of variables with the number of partitions of their rows.
_PARTITIONS = "_partitions_of_rows"


def note_partitions(
    variable: Any, partitioner: Callable[..., Sequence[int]] | None
) -> None:
    """Records on a variable how its rows would be partitioned."""
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
    """Returns the rows of ids in a variable without partitions.

    Args:
        params: The variable, or a list of variables.
        ids: A tensor of integers.
        partition_strategy: "mod" or "div", as in `tf.nn.embedding_lookup`.

    Returns:
        The rows, which are `ids` with one partition or the strategy "div".
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
    # The first partitions have one more row if the rows do not divide evenly.
    size, larger = divmod(params.shape.as_list()[0], partitions)
    partition = ids % partitions
    return partition * size + tf.minimum(partition, larger) + ids // partitions
