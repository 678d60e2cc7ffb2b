"""The execution of a script in this process."""

import contextlib
import pathlib
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def run(
    script: str,
    arguments: Sequence[str] = (),
    is_module: bool = False,
    names: Mapping[str, Any] | None = None,
) -> None:
    """Runs a script as `python SCRIPT ARGUMENTS` does.

    Args:
        script: The path of a script, or the name of a module.
        arguments: Its arguments in `sys.argv`. Defaults to none.
        is_module: Whether it is a module, as for `python -m`. Defaults to
            `False`.
        names: Additional globals. Defaults to none.
    """
    own = dict(names or {})
    with _arguments(script, arguments, folder_of(script, is_module)):
        if is_module:
            runpy.run_module(script, own, "__main__", alter_sys=True)
        else:
            runpy.run_path(script, own, "__main__")


def folder_of(script: str, is_module: bool) -> pathlib.Path:
    """Returns the folder whose modules a script imports."""
    return pathlib.Path() if is_module else pathlib.Path(script).parent


@contextlib.contextmanager
def _arguments(
    script: str, arguments: Sequence[str], folder: pathlib.Path
) -> Iterator[None]:
    before = sys.argv[:], sys.path[:]
    sys.argv[:] = [script, *arguments]
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.argv[:], sys.path[:] = before
