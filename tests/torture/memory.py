"""The memory of this process, as Linux reports it."""

import ctypes
import gc
import pathlib
import re

_OWN = pathlib.Path("/proc/self")
_RESET_PEAK = "5"


def now() -> int:
    """Bytes that are in use, when all that is not was given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def forget_peak() -> None:
    """Has `peak` begin again."""
    (_OWN / "clear_refs").write_text(_RESET_PEAK)


def peak() -> int:
    """The most bytes that there were since then."""
    return _status("VmHWM")


def _status(name: str) -> int:
    text = (_OWN / "status").read_text()
    (kilobytes,) = re.findall(rf"^{name}:\s*(\d+) kB$", text, re.MULTILINE)
    return int(kilobytes) << 10
