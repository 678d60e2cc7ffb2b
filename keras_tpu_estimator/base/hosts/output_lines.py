"""Lines of a process's output, as soon as they can be shown.

A progress bar rewrites its line after each `\\r`. Such a line is shown at most once a
second and when it ends, because an output of several processes cannot be rewritten.
"""

import array
import io
import os
import select
import sys
import time
from collections.abc import Iterator

_CHUNK_BYTES = 2**16
_UPDATE_SECS = 1.0


def show_all_characters() -> None:
    """Escapes the characters of the output that the terminal does not support."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class Lines:
    """The lines of an output that arrives in chunks, in a time linear in its size."""

    def __init__(self) -> None:
        # The chunks of the current line since its last `\r`.
        self._chunks: list[bytes] = []
        # The last text of the current line that `\r` ended.
        self._rewritten = b""
        self._is_shown = False
        self._shown_at = float("-inf")

    def add(self, data: bytes, now: float) -> Iterator[bytes]:
        """Yields the lines that can be shown at a time in seconds."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._extend(line)
            yield from self.end()
        self._extend(rest)
        if self.wait_secs(now) == 0:
            self._is_shown = True
            self._shown_at = now
            yield self._rewritten

    def wait_secs(self, now: float) -> float | None:
        """Returns how long a rewritten line must wait; `None` if there is none."""
        if not self._rewritten or self._is_shown:
            return None
        return max(self._shown_at + _UPDATE_SECS - now, 0)

    def end(self) -> Iterator[bytes]:
        """Yields the current line as a terminal would show it, and ends it."""
        line = b"".join(self._chunks)
        if line or not self._is_shown:
            yield line or self._rewritten
        self._chunks, self._rewritten, self._is_shown = [], b"", False

    def _extend(self, data: bytes) -> None:
        """Adds a part of the current line."""
        *texts, rest = data.split(b"\r")
        if texts:
            texts[0] = b"".join([*self._chunks, texts[0]])
            self._chunks = []
            # A terminal still shows the last text if nothing follows it.
            texts = [text for text in texts if text]
            if texts:
                self._rewritten, self._is_shown = texts[-1], False
        if rest:
            self._chunks.append(rest)


def lines_of(source: int, ended: int) -> Iterator[bytes]:
    """Yields the lines that a process writes until it ends.

    A child that outlives it may keep the same output open, so the end of the process
    ends its output. Both arguments are file descriptors; `ended` is readable when the
    process has ended.
    """
    lines, is_last = Lines(), False
    while not is_last:
        secs = lines.wait_secs(time.monotonic())
        ready, _, _ = select.select([source, ended], [], [], secs)
        data = b""
        if ready:
            is_last = ended in ready
            size = _available_bytes(source) if is_last else _CHUNK_BYTES
            data = os.read(source, size)
            is_last |= not data
        yield from lines.add(data, time.monotonic())
    yield from (line for line in lines.end() if line)


def _available_bytes(source: int) -> int:
    """Returns the number of bytes that can be read without waiting."""
    # Windows has neither, and imports this module for its error message.
    import fcntl
    import termios

    number = array.array("i", [0])
    fcntl.ioctl(source, termios.FIONREAD, number)
    return number[0]
