"""Names that users give in the way of TensorFlow."""


def plain_name(name: str) -> str:
    """A name without the `":0"` that TensorFlow's tensors end with.

    Args:
        name: Of a tensor or a variable.

    Example:

    >>> plain_name("dense/bias:0"), plain_name("loss")
    ('dense/bias', 'loss')
    """
    return name.removesuffix(":0")
