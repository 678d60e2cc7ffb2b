"""TensorFlow sessions that leave the devices to JAX.

Graphs and sessions work in programs that have disabled eager execution, and in
others.
"""

from collections.abc import Callable
from typing import Any

import numpy as np


def host_session(graph: Any = None) -> Any:
    """A session of a graph, on this machine's CPU.

    Args:
        graph: The graph. Operations that are not run may be such as no CPU has.
            Defaults to the default graph.

    Example:

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default(), host_session() as session:
    ...     int(session.run(tf.constant(3)))
    3
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    # What a program places on a GPU runs here, as an Estimator's sessions do it
    # on a machine without one.
    config = v1.ConfigProto(device_count={"GPU": 0}, allow_soft_placement=True)
    graph_options = config.graph_options
    # Else each operation of the graph would need a kernel for the CPU.
    graph_options.place_pruned_graph = True
    # To rewrite a graph takes longer than what is run here: folding constants
    # takes most of a minute where a dataset is one of 200 MB.
    graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    graph_options.rewrite_options.disable_meta_optimizer = True
    return v1.Session(graph=graph, config=config)


def initialized(
    initializer: Callable[..., Any], shape: tuple[int, ...], dtype: str
) -> np.ndarray:
    """What an initializer of TF1 makes.

    Args:
        initializer: The initializer.
        shape: The shape that is wanted.
        dtype: The name of the dtype.

    Example:

    >>> import tensorflow as tf
    >>> initialized(tf.compat.v1.ones_initializer(), (2,), "float32")
    array([1., 1.], dtype=float32)
    """
    import tensorflow as tf

    with tf.Graph().as_default(), host_session() as session:
        value = initializer(shape, dtype=tf.as_dtype(dtype))
        made: np.ndarray = session.run(tf.convert_to_tensor(value))
    return made
