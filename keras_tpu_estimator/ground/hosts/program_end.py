"""How the program of this process ends, as far as Python tells.

When the functions of `atexit` are called, the error that a program has ended
with is forgotten. `sys.last_value` is no help: Jupyter sets it for each cell
that fails, and debuggers for what they have looked at.
"""

import sys
from types import TracebackType
from typing import Any
from typing import NoReturn

from keras_tpu_estimator.ground.hosts.failures import exit_code


class ProgramEnd:
    """Notes an error that nobody has caught, and calls of `sys.exit`.

    Attributes:
        error: The error that the program ends with, or `None`.
        code: What `sys.exit` was last called with, or `None`. It may have been
            caught.

    Example:

    >>> end = ProgramEnd()
    >>> end.note()
    >>> try:
    ...     sys.exit(3)
    ... except SystemExit:
    ...     print(end.code)
    ... finally:
    ...     end.forget()
    3
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.code: int | None = None
        self._before: tuple[Any, Any] | None = None

    def note(self) -> None:
        """Begins."""
        self._before = sys.excepthook, sys.exit
        sys.excepthook = self._uncaught
        sys.exit = self._exit

    def forget(self) -> None:
        """Puts back what was there, unless others have come after it."""
        if self._before is None:
            return
        excepthook, leave = self._before
        if sys.excepthook == self._uncaught:
            sys.excepthook = excepthook
        if sys.exit == self._exit:
            sys.exit = leave

    def _uncaught(
        self,
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        # At a prompt, and before the one of `python -i`, the program goes on.
        if not (hasattr(sys, "ps1") or sys.flags.inspect):
            self.error = error
        if self._before is not None:
            self._before[0](kind, error, traceback)

    def _exit(self, status: Any = None, /) -> NoReturn:
        self.code = exit_code(SystemExit(status))
        if self._before is not None:
            self._before[1](status)
        raise SystemExit(status)
