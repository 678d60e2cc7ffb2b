"""Tests that scripts report how they end."""

import subprocess
import sys

import pytest

from keras_tpu_estimator.base.hosts.shutdown import ProgramEnd

pytestmark = pytest.mark.usefixtures("forked_programs")

_SCRIPT = """
import atexit, sys
from keras_tpu_estimator.base.hosts.shutdown import ProgramEnd

end = ProgramEnd()
end.note()
atexit.register(lambda: print(repr(end.error), end.code))
"""


def ended(code):
    """The known state at the end, and the exit code."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT + code],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip(), done.returncode


def test_normal_end():
    assert ended("") == ("None None", 0)


def test_uncaught_error():
    known, code = ended("raise KeyError('name')")
    assert (known, code) == ("KeyError('name') None", 1)


def test_error_that_was_shown_and_caught():
    """Jupyter shows and catches the errors of each cell."""
    code = "sys.last_value = KeyError('name')"
    assert ended(code) == ("None None", 0)


def test_an_exit_code():
    assert ended("sys.exit(3)") == ("None 3", 3)
    assert ended("sys.exit()") == ("None 0", 0)
    assert ended("exit(1)") == ("None 1", 1)
    assert ended("quit('no')") == ("None 1", 1)
    seen = 4 if sys.version_info >= (3, 12) else None
    assert ended("raise SystemExit(4)") == (f"None {seen}", 4)


def test_errors_at_a_prompt_end_nothing(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    shown = []
    monkeypatch.setattr(sys, "excepthook", lambda *args: shown.append(args))
    end = ProgramEnd()
    end.note()
    error = KeyError("name")
    sys.excepthook(KeyError, error, None)
    assert end.error is None
    monkeypatch.delattr(sys, "ps1")
    sys.excepthook(KeyError, error, None)
    assert end.error is error
    assert shown == [(KeyError, error, None)] * 2
    end.forget()
    sys.excepthook(KeyError, None, None)
    assert end.error is error


def test_later_hooks_are_kept(monkeypatch):
    before = sys.exit
    end = ProgramEnd()
    end.note()

    def other(status=None):
        raise SystemExit(7)

    monkeypatch.setattr(sys, "exit", other)
    end.forget()
    assert sys.exit is other
    monkeypatch.undo()
    sys.exit = before
