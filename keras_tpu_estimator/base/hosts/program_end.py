"""The error or exit code with which the program of this process ends.

When Python calls functions of `atexit`, it has forgotten the error that ended
the program. `sys.last_value` does not help: Jupyter sets it for each failed
cell, and debuggers for each error that they show.
"""

import sys
import threading
from types import TracebackType
from typing import Any, NoReturn

from keras_tpu_estimator.base.hosts.failures import exit_code


class ProgramEnd:
    """Records uncaught errors and calls of `sys.exit`.

    Attributes:
        error: The uncaught error that ends the program, or `None`.
        code: The exit code of the last `sys.exit`, or `None`. The program may
            have caught it.

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
        """Starts to record."""
        self._before = sys.excepthook, sys.exit
        sys.excepthook = self._uncaught
        sys.exit = self._exit

    def forget(self) -> None:
        """Restores the earlier functions, unless others replaced ours."""
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
        # At a prompt, and with `python -i`, the program continues.
        if not (hasattr(sys, "ps1") or sys.flags.inspect):
            self.error = error
        if self._before is not None:
            self._before[0](kind, error, traceback)

    def _exit(self, status: Any = None, /) -> NoReturn:
        # In another thread it ends only that.
        if threading.current_thread() is threading.main_thread():
            self.code = exit_code(SystemExit(status))
        if self._before is not None:
            self._before[1](status)
        raise SystemExit(status)
