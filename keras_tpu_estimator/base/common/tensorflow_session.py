"""TensorFlow sessions on the CPU, with or without eager execution."""

from collections.abc import Callable
from typing import Any

import numpy as np


def host_session(graph: Any = None) -> Any:
    """Returns a session of a graph on this machine's CPU.

    Args:
        graph: The graph. Operations that do not run need no CPU kernel.
            Defaults to the default graph.

    Example:

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default(), host_session() as session:
    ...     int(session.run(tf.constant(3)))
    3
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    # Operations that a program places on a missing GPU run on the CPU, as in the
    # sessions of an Estimator.
    config = v1.ConfigProto(device_count={"GPU": 0}, allow_soft_placement=True)
    graph_options = config.graph_options
    # Otherwise each operation of the graph would need a CPU kernel.
    graph_options.place_pruned_graph = True
    # Optimizing a graph takes longer than running it once: constant folding of
    # a 200 MB dataset takes most of a minute.
    graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    graph_options.rewrite_options.disable_meta_optimizer = True
    return v1.Session(graph=graph, config=config)


def initialized(
    initializer: Callable[..., Any], shape: tuple[int, ...], dtype: str
) -> np.ndarray:
    """Returns the value that a TF1 initializer makes.

    Args:
        initializer: The initializer.
        shape: The shape of the value.
        dtype: The name of its dtype.

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
