"""Which files an index of a bundle of TensorFlow is about."""

from keras_tpu_estimator.files.directory.location import INDEX
from keras_tpu_estimator.ground.storage import paths

# What describes a bundle.
META = ".meta"
# More than the first entry of a table has, which describes the bundle.
_HEAD = 64
# Names have five digits.
_MOST = 10**5


def data_file(prefix: str, number: int, count: int) -> str:
    """The path of a file with the values of a bundle.

    Args:
        prefix: That of the bundle.
        number: Which of the files.
        count: How many there are.

    Example:

    >>> data_file("model.ckpt-20", 0, 1)
    'model.ckpt-20.data-00000-of-00001'
    """
    return f"{prefix}.data-{number:05d}-of-{count:05d}"


def data_files(prefix: str) -> list[str]:
    """The files with the values of a bundle, as its index has them.

    Args:
        prefix: That of the bundle.

    Returns:
        Their paths; none if there is no index, or it makes no sense.

    Example:

    >>> data_files("/nowhere/model.ckpt-20")
    []
    """
    try:
        with paths.opened(prefix + INDEX) as file:
            count = _count(file.read(_HEAD))
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        return []
    return [data_file(prefix, number, count) for number in range(count)]


def _count(head: bytes) -> int:
    """How many files there are, by the first bytes of an index.

    The first entry of the table has no key, and a `BundleHeaderProto`, of which
    the first field is meant. TensorFlow compresses none of it.
    """
    # Lengths of what the key shares with the one before, of the key, and of
    # the value; then the value.
    has_header = head[:2] == b"\0\0" and head[3:4] == b"\x08"
    if not has_header:
        return 0
    count = shift = 0
    for byte in head[4 : 3 + head[2]]:
        count |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return count if count < _MOST else 0
    return 0
