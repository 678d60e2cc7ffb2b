"""Whether the files of a checkpoint are as they were written.

Every format says what its files should have in them. Which of them this process
has written, or read to the last byte, is known here and nowhere else.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from collections.abc import Iterable

from keras_tpu_estimator.ground.storage import paths

# Whether content is right that was read, or written.
_KNOWN: dict[tuple[object, ...], bool] = {}
_MOST_KNOWN = 1 << 14
_KNOWN_LOCK = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Content:
    """What files of a checkpoint should have in them.

    Attributes:
        files: Their paths or URLs: one, unless they make sense only together.
        is_right: Reads all of them to find out.
        seal: What the checkpoint says of them, if it does. Defaults to `None`.
    """

    files: tuple[str, ...]
    is_right: Callable[[], bool]
    seal: object = None

    @property
    def identity(self) -> tuple[object, ...]:
        """What is another one as soon as one of the files is.

        Raises:
            FileNotFoundError: One is not there.
        """
        return (*map(paths.version, self.files), self.seal)


def are_intact(
    contents: Iterable[Content], host: int = 0, hosts: int = 1
) -> bool:
    """Whether files are as they were written.

    Every byte is read, once for as long as size and time of a file stay.

    Args:
        contents: What they should have in them.
        host: Which of several hosts this is, each of which reads some of the
            files. Defaults to 0.
        hosts: How many there are. Defaults to 1.

    Returns:
        `False` also if one is not there.

    Example:

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     [are_intact([Content((file.name,), lambda: is_right)])
    ...      for is_right in (True, False)]
    [True, True]
    """
    try:
        # Nobody need read if one is not there.
        found = [(each.identity, each) for each in contents]
        return all(_is_right(*each) for each in found[host::hosts])
    except FileNotFoundError:
        return False


def trust(contents: Iterable[Content]) -> None:
    """Has `are_intact` believe in files that were just written.

    Args:
        contents: What they should have in them. What another machine sees only
            later is read to be checked.
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
