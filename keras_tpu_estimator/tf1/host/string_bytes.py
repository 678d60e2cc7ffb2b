"""Strings as bytes of one length, which devices can hold.

Strings that a program passes on to predictions or metrics travel with the rows
of their batch: through stacks, shards and padding.
"""

from typing import Any

import numpy as np

# The last bytes of each row contain the length of the string.
_LENGTH = 4
_LEAST = 16


def as_bytes(strings: np.ndarray, least: int = _LEAST) -> np.ndarray:
    """Returns strings as bytes, on one more axis.

    Args:
        strings: Array of bytes.
        least: The minimum number of bytes of each. The default makes the shapes
            of batches equal in most cases.

    Example:

    >>> made = as_bytes(np.array([b"a", b"bc"], object))
    >>> made.shape, list(from_bytes(made))
    ((2, 20), [b'a', b'bc'])
    """
    flat = [*strings.ravel()]
    longest = max([least, *map(len, flat)])
    size = 1 << (longest - 1).bit_length()
    rows = [
        each.ljust(size, b"\0") + len(each).to_bytes(_LENGTH, "little") for each in flat
    ]
    made = np.frombuffer(b"".join(rows), np.uint8)
    return made.reshape(*strings.shape, size + _LENGTH)


def from_bytes(array: np.ndarray) -> np.ndarray:
    """Returns the strings that `as_bytes` encoded."""
    *shape, size = array.shape
    made = np.empty(array.size // size, object)
    for place, row in enumerate(np.ascontiguousarray(array).reshape(-1, size)):
        length = int.from_bytes(row[-_LENGTH:].tobytes(), "little")
        made[place] = row[:length].tobytes()
    return made.reshape(shape)


def decoded(tensor: Any, shape: Any) -> Any:
    """Returns operations that decode such bytes to strings.

    Args:
        tensor: A placeholder of the bytes.
        shape: The shape of the strings.
    """
    import tensorflow as tf

    with tf.name_scope("kte_strings"):
        made = tf.numpy_function(from_bytes, [tensor], tf.string, stateful=False)
    made.set_shape(shape)
    return made


def normalized(array: np.ndarray) -> np.ndarray:
    """Returns strings of any kind as bytes in an array of objects.

    Raises:
        ValueError: A value is no string.
    """
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    made = np.empty(array.shape, object)
    for place, value in enumerate(array.ravel()):
        if isinstance(value, str):
            value = value.encode()
        if not isinstance(value, bytes):
            raise ValueError(
                "An array of objects must contain strings. Received: "
                f"{value!r} of type {type(value).__name__}. Return numbers or "
                "strings from input_fn."
            )
        made.flat[place] = value
    return made
