"""PNG files of images, with what Python brings."""

import struct
import zlib

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Grey, grey with alpha, RGB, RGBA.
_COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
CHANNELS = tuple(_COLOR_TYPES)


def encode_png(image: np.ndarray) -> bytes:
    """Encodes an image without loss.

    Args:
        image: uint8 array of shape `[height, width, channels]`.

    Returns:
        The contents of a PNG file.

    Example:

    >>> from keras_tpu_estimator.files.summary.png import encode_png
    >>> encode_png(np.zeros((2, 2, 3), np.uint8))[1:4]
    b'PNG'

    Reference: https://www.w3.org/TR/png-3/
    """
    height, width, channels = image.shape
    eight_bits = 8
    header = struct.pack(
        ">IIBBBBB", width, height, eight_bits, _COLOR_TYPES[channels], 0, 0, 0
    )
    rows = image.reshape(height, width * channels)
    # Each row begins with its filter; 0 is none.
    filtered = np.pad(rows, ((0, 0), (1, 0)))
    return (
        _SIGNATURE
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(filtered.tobytes()))
        + _chunk(b"IEND", b"")
    )


def _chunk(name: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(name + data)
    return (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)
    )
