"""Files beside checkpoints that hold a JSON record and blobs.

They are ZIP archives, so each part has a checksum, and end with the token of
the save that they belong to.
"""

import json
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.atomic.checksum import stamp
from keras_tpu_estimator.ground.storage import paths


def write(
    path: str,
    token: str,
    name: str,
    record: Mapping[str, Any],
    blobs: Iterable[bytes],
) -> None:
    """Writes a file, whole or not at all.

    Args:
        path: The file's path or URL.
        token: The token of the save.
        name: The record's name in the archive.
        record: What JSON can hold.
        blobs: Bytes that belong to the record.

    Example:

    >>> import tempfile
    >>> path = f"{tempfile.mkdtemp()}/file.zip"
    >>> write(path, "0f0f0f0f", "state.json", {"steps": 20}, [b"abc"])
    >>> record, blobs = read(path, "state.json")
    >>> record["steps"], blobs
    (20, (b'abc',))
    """
    blobs = tuple(blobs)
    with commit.replacing(path) as partial:
        with zipfile.ZipFile(partial, "w") as file:
            file.writestr(name, json.dumps({**record, "blobs": len(blobs)}))
            for number, blob in enumerate(blobs):
                file.writestr(str(number), blob)
            file.comment = stamp(token)


def read(path: str, name: str) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    """Reads the record and the blobs of a file.

    Args:
        path: The file's path or URL.
        name: The record's name in the archive.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: The file is corrupt.
    """
    try:
        with (
            paths.opened(path) as stream,
            zipfile.ZipFile(stream) as file,
        ):
            record = json.loads(file.read(name))
            count = record.get("blobs", 0)
            return record, tuple(file.read(str(n)) for n in range(count))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(str(error)) from error
