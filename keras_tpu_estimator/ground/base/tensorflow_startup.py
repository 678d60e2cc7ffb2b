"""The first lines of TensorFlow, under the level that was chosen for it."""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
import types
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# A process of its own also shows the last line of one that crashes, and
# lines of a library that keeps Python's threads waiting while it is loaded.
_FILTER = """
import re
import sys

header = rb"WARNING: All log messages before absl::InitializeLog"
hidden = re.compile(rb"[%s]\\d{4} \\d\\d:\\d\\d:|" + header)
for line in sys.stdin.buffer:
    if not hidden.match(line):
        sys.stderr.buffer.write(line)
        sys.stderr.flush()
"""
_SECONDS = 5.0


class _Finder(importlib.abc.MetaPathFinder):
    """Finds TensorFlow as others do, and filters what its import prints."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        others = (each for each in sys.meta_path if each is not self)
        specs = (each.find_spec(fullname, path, target) for each in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            run = functools.partial(_filtered, spec.loader.exec_module)
            spec.loader.exec_module = run  # type: ignore[method-assign]
        return spec


def follow_level() -> None:
    """Makes the next import of TensorFlow obey `TF_CPP_MIN_LOG_LEVEL`.

    TensorFlow 2.21 writes some lines before it has read this variable, which
    JAX sets to 1, for warnings and errors, unless the user has set it.
    """
    if "tensorflow" not in sys.modules and os.name == "posix":
        sys.meta_path.insert(0, _Finder())


def _filtered(
    run: Callable[[types.ModuleType], None], module: types.ModuleType
) -> None:
    """Runs a module without the lines that the level excludes."""
    level = os.environ.get(_LEVEL, "0")
    hidden = "IWE"[: int(level)] if level.isdecimal() else ""
    with hiding(hidden) if hidden else contextlib.nullcontext():
        run(module)


@contextlib.contextmanager
def hiding(kinds: str) -> Iterator[None]:
    """Keeps lines of C++ libraries in a `with` block off standard error.

    Args:
        kinds: The letters with which such lines begin: some of `IWEF`.
    """
    is_frozen = getattr(sys, "frozen", False)  # Then there is no interpreter.
    if is_frozen or sys.stderr is None or not sys.executable:
        yield
        return
    _flush()
    try:
        own = os.dup(2)
    except OSError:  # Standard error is closed.
        yield
        return
    with contextlib.closing(os.fdopen(own, "wb", 0)):
        reader = _reader(kinds)
        try:
            yield
        finally:
            _flush()
            os.dup2(own, 2)
            # Another process, started meanwhile, may still write to it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                reader.wait(_SECONDS)


def _reader(kinds: str) -> "subprocess.Popen[bytes]":
    """Starts what reads standard error, from now on."""
    read_end, write_end = os.pipe()
    try:
        reader = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _FILTER % kinds],
            stdin=read_end,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C leaves it to show the rest.
        )
        os.dup2(write_end, 2)
        return reader
    finally:
        os.close(read_end)
        os.close(write_end)


def _flush() -> None:
    """Writes what Python still holds for standard error."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.flush()
