"""How far a layer may move: in proportion to its weights."""

from typing import Any

from keras import ops


def norm(x: Any) -> Any:
    """The Euclidean norm over all elements, as a scalar.

    Args:
        x: A tensor or variable of any shape.

    Example:

    >>> float(norm([[3.0, 0.0], [0.0, 4.0]]))
    5.0
    """
    return ops.sqrt(ops.sum(ops.square(x)))


def where_positive(norms: tuple[Any, Any], ratio: Any) -> Any:
    """A ratio of norms, or 1 where one of them is zero.

    Weights that start at zero would stay there with a ratio of zero.

    Args:
        ratio: Scalar, which may be anything where one of them is zero.

    Example:

    >>> float(where_positive((2.0, 4.0), 0.5))
    0.5
    >>> float(where_positive((0.0, 4.0), 0.0))
    1.0
    """
    are_positive = ops.logical_and(norms[0] > 0, norms[1] > 0)
    return ops.where(are_positive, ratio, ops.ones_like(ratio))
