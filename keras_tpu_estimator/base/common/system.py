"""The operating system: what Windows lacks, free ports, and an exit code."""

import os
import socket

# Windows lacks part of `os` and `signal`, and it neither renames nor deletes a
# file that a program has open.
IS_WINDOWS = os.name == "nt"


def check_is_posix(what: str, instead: str) -> None:
    """Raises a `NotImplementedError` on Windows.

    The feature is the subject of a sentence, and `instead` is a sentence of advice.
    """
    if IS_WINDOWS:
        raise NotImplementedError(f"{what} is not supported on Windows. {instead}")


def free_port(host: str = "") -> int:
    """Returns a port that is free on an address of this machine; by default, on all."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


# The exit code after a failure that a restart may repair: "temporary failure", as the
# field's `sysexits.h` has it.
RETRY_CODE = 75
