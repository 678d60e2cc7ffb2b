"""Checks that the files of a checkpoint are unchanged since they were written.

Each format describes the expected content of its files. This module remembers
the files that this process has written or completely read.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable

from keras_tpu_estimator.base.storage import paths

# The results for content that was read or written.
_KNOWN: dict[tuple[object, ...], bool] = {}
_MOST_KNOWN = 1 << 14
_KNOWN_LOCK = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Content:
    """The expected content of files of a checkpoint.

    Attributes:
        files: Paths or URLs: one, or several that can only be checked together.
        is_right: Reads all of them and returns whether they are correct.
        seal: The identifier of the content in the checkpoint, if any.
    """

    files: tuple[str, ...]
    is_right: Callable[[], bool]
    seal: object = None

    @property
    def identity(self) -> tuple[object, ...]:
        """A key that changes whenever one of the files does.

        Raises:
            FileNotFoundError: A file is missing.
        """
        return (*map(paths.version, self.files), self.seal)


def are_intact(contents: Iterable[Content], host: int = 0, hosts: int = 1) -> bool:
    """Returns whether files are unchanged since they were written.

    Every byte is read, but only once while the size and time of a file stay the
    same. The result is `False` if a file is missing.

    Args:
        host: The number of this host, which reads its share of the files.
        hosts: The number of hosts.

    Example:

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     [are_intact([Content((file.name,), lambda: is_right)])
    ...      for is_right in (True, False)]
    [True, True]
    """
    try:
        # No file is read if one is missing.
        found = [(each.identity, each) for each in contents]
        return all(_is_right(*each) for each in found[host::hosts])
    except FileNotFoundError:
        return False


def trust(contents: Iterable[Content]) -> None:
    """Records files that were just written as intact.

    A file that another machine sees only later is still read to be checked.
    """
    for each in contents:
        with contextlib.suppress(FileNotFoundError):
            _remember(each.identity, True)


def _is_right(identity: tuple[object, ...], content: Content) -> bool:
    known = _KNOWN.get(identity)
    if known is None:
        known = content.is_right()
        _remember(identity, known)
    return known


def _remember(identity: tuple[object, ...], is_right: bool) -> None:
    with _KNOWN_LOCK:
        if len(_KNOWN) >= _MOST_KNOWN:
            del _KNOWN[next(iter(_KNOWN))]
        _KNOWN[identity] = is_right
