"""Reading and writing an open file at an offset, from several threads."""

import os
import threading

# Held by a thread while the position of a file is not where it was.
_MOVED = threading.Lock()


def read(descriptor: int, memory: memoryview, offset: int) -> int:
    """Reads into memory and leaves the position of the file unchanged.

    Args:
        descriptor: The descriptor of a file.
        memory: The memory to fill, as bytes.
        offset: The first byte to read.

    Returns:
        The number of bytes that were read, which may be less than asked for. 0
        means that the file ends there.

    Example:

    >>> import tempfile
    >>> memory = memoryview(bytearray(2))
    >>> with tempfile.TemporaryFile() as file:
    ...     _ = file.write(b"content")
    ...     file.flush()
    ...     read(file.fileno(), memory, 3)
    2
    >>> bytes(memory)
    b'te'
    """
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [memory], offset)
    # Windows, and macOS 10.
    with _At(descriptor, offset):
        content = os.read(descriptor, len(memory))
    memory[: len(content)] = content
    return len(content)


def write(descriptor: int, memory: memoryview, offset: int) -> int:
    """Writes memory and leaves the position of the file unchanged.

    Args:
        descriptor: The descriptor of a file.
        memory: The bytes to write.
        offset: Where to write the first one.

    Returns:
        The number of bytes that were written, which may be less than all.

    Example:

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     write(file.fileno(), memoryview(b"content"), 3)
    7
    """
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, memory, offset)
    with _At(descriptor, offset):
        return os.write(descriptor, memory)


class _At:
    """Inside its `with` block, a file is at another position."""

    def __init__(self, descriptor: int, offset: int) -> None:
        self._descriptor = descriptor
        self._offset = offset

    def __enter__(self) -> None:
        _MOVED.acquire()
        self._before = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        os.lseek(self._descriptor, self._offset, os.SEEK_SET)

    def __exit__(self, *exception: object) -> None:
        # Buffered files remember where they are.
        os.lseek(self._descriptor, self._before, os.SEEK_SET)
        _MOVED.release()
