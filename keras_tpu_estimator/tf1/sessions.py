"""TensorFlow sessions, and giving variables values in them."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def graph_session(graph: Any) -> Any:
    """A session for some operations of a graph that devices are to run.

    Args:
        graph: The graph.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    # Else each operation of the graph would need a kernel for the CPU.
    options = v1.GraphOptions(place_pruned_graph=True)
    config = v1.ConfigProto(graph_options=options)
    return v1.Session(graph=graph, config=config)


def load_values(
    session: Any, initializers: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    """Gives variables values in a session.

    Args:
        session: The session.
        initializers: By name what gives variables their initial values.
        values: Arrays by name.
    """
    session.run(
        [initializers[name] for name in values],
        {
            initializers[name].inputs[1]: np.asarray(value)
            for name, value in values.items()
        },
    )
