"""The context in which a TF1 `model_fn` builds its graph."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

from keras_tpu_estimator.tf1 import internals
from keras_tpu_estimator.tf1.inner_ops import graph_class, without_inner
from keras_tpu_estimator.tf1.inside import check_returned
from keras_tpu_estimator.tf1.shims.giving_back import give_back
from keras_tpu_estimator.tf1.tf2_behavior import as_in_tf2

_is_building: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "is_building", default=False
)


@contextlib.contextmanager
def building(seed: int | None, cores: int = 1) -> Iterator[Any]:
    """Makes a new graph in which a `TF1ModelFn` can be called."""
    import tensorflow as tf

    v1 = tf.compat.v1
    give_back()
    graph = graph_class()()
    token = _is_building.set(True)
    try:
        with (
            as_in_tf2(),
            graph.as_default(),
            internals.shards(cores),
            internals.whole_variables(),
            internals.initialized_values(),
            internals.scopes_of(without_inner),
            internals.inputs_checked(check_returned),
        ):
            if seed is not None:
                v1.set_random_seed(seed)
            v1.train.create_global_step()
            yield graph
    finally:
        _is_building.reset(token)


@contextlib.contextmanager
def in_any_graph() -> Iterator[None]:
    """Allows a `TF1ModelFn` to build in the caller's own graph."""
    token = _is_building.set(True)
    try:
        yield
    finally:
        _is_building.reset(token)


def is_building() -> bool:
    """Returns whether the current code runs in one of these contexts."""
    return _is_building.get()
