"""Variables that TensorFlow would split into partitions. They have one part here."""

import inspect
import itertools
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


def with_slot_names(original: Callable[..., Any]) -> Callable[..., Any]:
    """Adapts a function that creates slots, which then have TensorFlow's names.

    There, the slot of a partitioned variable has an odd name if the optimizer is called
    in a variable scope: `dnn/w/t_0/Adagrad` is the slot of `dnn/w` in the scope `dnn`.
    """
    import tensorflow.compat.v1 as tf

    signature = inspect.signature(original)

    def create(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        primary, scope = bound.arguments["primary"], tf.get_variable_scope()
        if not scope.name or not hasattr(primary, _PARTITIONS):
            return original(*args, **kwargs)
        part = f"{primary.op.name}/part_0/"
        cut = f"{scope.name}/{part}{bound.arguments['name']}"[len(part) :]
        names = {variable.op.name for variable in tf.global_variables()}
        numbered = (f"_{number}" if number else "" for number in itertools.count())
        bound.arguments["name"] = cut + next(
            suffix
            for suffix in numbered
            if f"{primary.op.name}/{cut}{suffix}" not in names
        )
        root = tf.VariableScope(scope.reuse, use_resource=True)
        with tf.variable_scope(root, auxiliary_name_scope=False):
            return original(*bound.args, **bound.kwargs)

    return create


def rows_of(params: Any, ids: Any, partition_strategy: str) -> Any:
    """Returns the rows of ids in a variable without partitions.

    They differ from `ids` only with several partitions and the strategy "mod".
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
