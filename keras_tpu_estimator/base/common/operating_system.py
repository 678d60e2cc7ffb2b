"""The differences between operating systems that the package knows."""

import os

# Windows lacks part of `os` and `signal`, and it neither renames nor deletes a
# file that a program has open.
IS_WINDOWS = os.name == "nt"


def check_is_posix(what: str, instead: str) -> None:
    """Checks that this is not Windows.

    Args:
        what: The feature that needs Linux or macOS, as the subject of a
            sentence.
        instead: A sentence that says what to do on Windows.

    Raises:
        NotImplementedError: It is Windows.

    Example:

    >>> check_is_posix("The command `launch`", "Use WSL.")
    """
    if IS_WINDOWS:
        raise NotImplementedError(f"{what} is not supported on Windows. {instead}")
