"""What the files of a save have at their ends, and other files have not.

It tells whose they are, and of which save: a name alone may be a user's.
"""

import os
import re
import secrets

from keras_tpu_estimator.ground.storage import paths

_MAGIC = b"KTESAVED"
_TOKEN = re.compile(rb"[0-9a-f]{8}")
# Of files that are the same for every save.
NO_TOKEN = "0" * 8
SIZE = len(_MAGIC) + len(NO_TOKEN)


def new_token() -> str:
    """What tells one save from all others.

    Example:

    >>> len(new_token())
    8
    """
    return secrets.token_hex(4)


def stamp(token: str) -> bytes:
    """The last bytes of a file of a save.

    Args:
        token: That of the save.

    Example:

    >>> stamp("0f0f0f0f"), token_in(stamp("0f0f0f0f"))
    (b'KTESAVED0f0f0f0f', '0f0f0f0f')
    """
    return _MAGIC + token.encode()


def token_in(end: bytes) -> str | None:
    """The token of the save that a file belongs to.

    Args:
        end: Its last bytes, `SIZE` of them or more.

    Returns:
        The token; `None` if the file is of no save.
    """
    magic, token = end[-SIZE : -len(NO_TOKEN)], end[-len(NO_TOKEN) :]
    is_ours = magic == _MAGIC and _TOKEN.fullmatch(token)
    return token.decode() if is_ours else None


def token_of(path: str) -> str | None:
    """The token of the save that a file belongs to.

    Args:
        path: A path or URL.

    Returns:
        The token; `None` if the file is of no save, or not there, or not to be
        read by this user.

    Example:

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "file")
    >>> size = path.write_bytes(b"content" + stamp("0f0f0f0f"))
    >>> token_of(str(path)), token_of("/nowhere")
    ('0f0f0f0f', None)
    """
    try:
        with paths.opened(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - SIZE))
            return token_in(file.read(SIZE))
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        return None
