"""The names that TensorFlow graphs give operations, inside those of XLA."""

import re
from typing import NamedTuple

from keras_tpu_estimator.engine.program.steps import GRAPH_SCOPE

_IN_GRAPH = re.compile(rf"(?:^|/){GRAPH_SCOPE}/(.+)$")
# As `tf.gradients` calls what it adds for an operation.
_GRADIENT = re.compile(r"(?:^|.*/)gradients(?:_\d+)?/(.+)_grad/[^/]+$")


class GraphName(NamedTuple):
    """An operation of a graph.

    Attributes:
        name: Its name, or in the backward pass that of the operation in the
            forward pass that it belongs to.
        is_gradient: Whether it belongs to the backward pass.
    """

    name: str
    is_gradient: bool


def of(op_name: str) -> GraphName | None:
    """Parses the name of a graph's operation in XLA's name, if there is one.

    Example:

    >>> from keras_tpu_estimator.planning import graph_names
    >>> name = "jit(f)/while/body/tf1_step/gradients/dense/MatMul_grad/MatMul"
    >>> graph_names.of(name)
    GraphName(name='dense/MatMul', is_gradient=True)
    """
    found = _IN_GRAPH.search(op_name)
    if found is None:
        return None
    gradient = _GRADIENT.match(found[1])
    return GraphName(gradient[1] if gradient else found[1], bool(gradient))
