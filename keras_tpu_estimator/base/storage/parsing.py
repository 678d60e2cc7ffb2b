"""Errors that name a corrupt file."""

import contextlib
import errno
from collections.abc import Iterator

from keras_tpu_estimator.base.common.shown import shortened


@contextlib.contextmanager
def parsing(path: str, content: str, advice: str) -> Iterator[None]:
    """Raises a `ValueError` if a `with` block cannot parse a file.

    Parsers of archives and JSON raise errors of many classes for a corrupt file. Errors
    of the file system, such as a missing file, stay the same.

    Args:
        path: The file.
        content: What it must contain, after "must".
        advice: A sentence that says what to do.
    """
    try:
        yield
    except Exception as error:
        # An archive may name a position before its beginning.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        text = shortened(str(error)) or type(error).__name__
        raise ValueError(
            f"{path!r} must {content}. Received a corrupt file ({text}). {advice}"
        ) from error
