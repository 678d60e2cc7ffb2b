"""TensorFlow names of tensors and variables."""


def plain_name(name: str) -> str:
    """Returns a name without the suffix `":0"` of TensorFlow's tensors.

    Args:
        name: The name of a tensor or a variable.

    Example:

    >>> plain_name("dense/bias:0"), plain_name("loss")
    ('dense/bias', 'loss')
    """
    return name.removesuffix(":0")
