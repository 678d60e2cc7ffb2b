"""Elements inside the branches and loops of a graph."""

from typing import Any

from keras_tpu_estimator.tf1.graph.source_lines import line_of


def is_inside(graph: Any, element: Any) -> bool:
    """Returns whether an element is in a branch or a loop of a graph."""
    inner = getattr(getattr(element, "op", element), "graph", None)
    while inner is not None:
        inner = getattr(inner, "outer_graph", None)
        if inner is graph:
            return True
    return False


def check_outside(name: str, graph: Any, element: Any) -> None:
    """Raises a ValueError if an element is in a branch or a loop of a graph.

    Args:
        name: The name of the element in the error.
        graph: The graph.
        element: An operation or a tensor.
    """
    if is_inside(graph, element):
        raise ValueError(
            f"{name} must be outside of branches and loops; TensorFlow 1.15 "
            f"also fetches nothing inside. Received: {element!r}. Return a "
            "tensor from the branch or loop, or put an operation of a branch "
            "into tf.group."
        )


def check_returned(graph: Any, tensor: Any) -> None:
    """Raises a ValueError if a tensor is in a branch or a loop of a graph."""
    if is_inside(graph, tensor):
        op = getattr(tensor, "op", tensor)
        raise ValueError(
            "A tensor of a branch or a loop must be returned from it to be "
            "used outside, also if it is in a collection, as losses and "
            f"summaries are. Received: {op.name} ({op.type}), made at "
            f"{line_of(op)}. Return it from the function that makes it, and "
            "use the result of tf.cond or tf.while_loop, such as in "
            "tf.losses.add_loss."
        )
