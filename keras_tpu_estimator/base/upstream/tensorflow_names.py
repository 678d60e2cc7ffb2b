"""TensorFlow's reports of operations and collections, and parts of its datasets."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from keras_tpu_estimator.base.upstream.private_names import (
    PrivateAttribute,
    PrivateName,
)
from keras_tpu_estimator.base.upstream.replacements import Replacement

_OP_CALLBACKS = PrivateName(
    "reports the operations that a thread makes",
    ("tensorflow.python.framework.op_callbacks",),
)
COLLECTIONS = Replacement(
    PrivateName(
        "reads a collection of a graph; TensorFlow does not report that",
        ("tensorflow.Graph.get_collection",),
    ),
)
MATCHING_FILES = Replacement(
    PrivateName(
        "searches for files in graphs; TensorFlow finds none in a missing folder",
        ("tensorflow.python.ops.gen_io_ops.matching_files",),
    ),
)
DROPOUT = Replacement(
    PrivateName(
        "drops random elements of all dropouts; two programs draw different ones",
        ("tensorflow.python.ops.nn_ops._dropout",),
    ),
)
GRADIENTS = Replacement(
    PrivateName(
        "makes the gradients of optimizers and of `tf.gradients`",
        ("tensorflow.python.ops.gradients_util._GradientsHelper",),
    ),
)
# The optimizers whose gradients a program may change before it applies them.
APPLICATIONS = tuple(
    Replacement(
        PrivateName(
            "applies gradients; TensorFlow does not report those",
            (f"tensorflow.compat.v1.{optimizer}.apply_gradients",),
        ),
    )
    for optimizer in ("tpu.CrossShardOptimizer", "train.Optimizer")
)
_PREFETCH_DATASET = PrivateName(
    "is the class of datasets that prefetch",
    ("tensorflow.python.data.ops.prefetch_op._PrefetchDataset",),
)
_INPUT_DATASET = PrivateAttribute(
    "holds the dataset that another one reads", "tensorflow.data.Dataset._input_dataset"
)


@contextlib.contextmanager
def ops_reported(report: Callable[[str], None]) -> Iterator[None]:
    """Calls a function with the type of each operation that this thread makes."""
    op_callbacks = _OP_CALLBACKS.value

    def callback(op_type: Any, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        report(op_type.decode() if isinstance(op_type, bytes) else op_type)

    op_callbacks.add_op_callback(callback)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(callback)


@contextlib.contextmanager
def collections_reported(report: Callable[[str], None]) -> Iterator[None]:
    """Calls a function with the string name of each collection before it is read."""

    def reporting(
        get_collection: Callable[..., Any], graph: Any, name: Any, scope: Any = None
    ) -> Any:
        if isinstance(name, str):
            report(name)
        return get_collection(graph, name, scope)

    with COLLECTIONS.block(reporting):
        yield


def without_prefetch(dataset: Any) -> Any:
    """Returns a dataset without prefetching at its end."""
    while isinstance(dataset, _PREFETCH_DATASET.value):
        dataset = _INPUT_DATASET.get(dataset)
    return dataset


@contextlib.contextmanager
def without_dropout(note: Callable[[Any], object]) -> Iterator[None]:
    """Makes TensorFlow drop nothing in a `with` block; `note` receives each rate."""

    def dropout(function: Any, x: Any, rate: Any, *arguments: Any, **named: Any) -> Any:
        del function, arguments, named
        note(rate)
        return x

    with DROPOUT.block(dropout):
        yield


@contextlib.contextmanager
def gradients_reported(
    report: Callable[..., object],
) -> Iterator[None]:
    """Passes on variables and their gradients that a `with` block makes.

    Those that an optimizer receives are passed on after those that were made, and the
    ones of an outer optimizer before those of the optimizer that it wraps.
    """

    def gradients(
        function: Any, ys: Any, xs: Any, *arguments: Any, **named: Any
    ) -> Any:
        results = function(ys, xs, *arguments, **named)
        variables = xs if isinstance(xs, list | tuple) else [xs]
        report([*variables], results)
        return results

    def applied(
        function: Any, optimizer: Any, pairs: Any, *arguments: Any, **named: Any
    ) -> Any:
        pairs = [*pairs]
        values, variables = ([pair[part] for pair in pairs] for part in (0, 1))
        report(variables, values, is_applied=True)
        return function(optimizer, pairs, *arguments, **named)

    with contextlib.ExitStack() as stack:
        stack.enter_context(GRADIENTS.block(gradients))
        for application in APPLICATIONS:
            stack.enter_context(application.block(applied))
        yield
