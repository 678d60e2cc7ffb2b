"""Ends a process or fills its disk between any two file operations.

This process stands for the killed one: after that moment it cannot change files, and
its locks are released when its files are closed.
"""

import builtins
import contextlib
import errno
import functools
import io
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

KILL, FULL, FLAW = "kill", "full disk", "one operation that fails"
FATES = (KILL, FULL, FLAW)
REMOVING = ("remove",)
# Operations of this package itself.
OWN = ("replace", "remove", "fsync", "pwrite")
# Other operations are Orbax's, which would continue after a simulated kill.
_THREADS = ("MainThread", "checkpoint-writer")
_WRITES = os.O_WRONLY | os.O_RDWR


class Killed(BaseException):
    """An error that skips code that a killed process would not run."""


class Operations:
    """Counts operations on a directory's files, and interrupts one of them.

    Args:
        directory: The directory. Its event files do not count.
        at: The number of the interrupted operation, from 1 on. Defaults to none.
        fate: One of `FATES`.
    """

    def __init__(self, directory: str, at: int = 0, fate: str = KILL):
        self._directory = os.path.realpath(directory)
        self._at = at
        self._fate = fate
        self.done: list[str] = []

    @property
    def is_met(self) -> bool:
        """Whether the interrupted operation was reached."""
        return 0 < self._at <= len(self.done)

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Counts operations in a `with` block."""
        real_open = io.open
        opens = functools.partial(self._open, real_open)
        with contextlib.ExitStack() as stack:
            for name in ("replace", "remove", "open", "fsync", "pwrite"):
                wrapped = functools.partial(self._wrapped, name, vars(os)[name])
                stack.enter_context(mock.patch.object(os, name, wrapped))
            stack.enter_context(mock.patch.object(builtins, "open", opens))
            stack.enter_context(mock.patch.object(io, "open", opens))
            yield

    def _wrapped(
        self, name: str, real: Callable[..., Any], first: Any, *rest: Any
    ) -> Any:
        is_change = name != "open" or bool(rest[0] & _WRITES)
        if is_change:
            self._meet(name, first)
        return real(first, *rest)

    def _open(
        self,
        real: Callable[..., Any],
        file: Any,
        mode: str = "r",
        *arguments: Any,
        **settings: Any,
    ) -> Any:
        if not {*mode} & {*"wxa+"} or not self._counts(file):
            return real(file, mode, *arguments, **settings)
        self._meet("open to write", file)
        opened = real(file, mode, *arguments, **settings)
        write = opened.write

        def writing(content: Any) -> Any:
            self._meet("write", file)
            return write(content)

        with contextlib.suppress(AttributeError):
            opened.write = writing
        return opened

    def _meet(self, name: str, file: Any) -> None:
        """Runs or interrupts an operation."""
        is_own = threading.current_thread().name in _THREADS
        if not is_own or not self._counts(file):
            return
        self.done.append(name)
        number = len(self.done)
        if not self.is_met:
            return
        if self._fate == KILL:
            raise Killed
        is_hit = number == self._at if self._fate == FLAW else name not in REMOVING
        if is_hit:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _counts(self, file: Any) -> bool:
        if isinstance(file, int):
            file = os.readlink(f"/proc/self/fd/{file}")
        path = os.path.realpath(os.fsdecode(file)).removesuffix(" (deleted)")
        is_inside = path.startswith(self._directory)
        return is_inside and "tfevents" not in path
