"""The file of what training reports, one JSON object a line."""

import json
import math
import os
import time
from collections.abc import Mapping

from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage.growing_files import GrowingFile
from keras_tpu_estimator.ground.storage.growing_files import growing

FILE_NAME = "metrics.jsonl"


class MetricsFile:
    """Appends reports to `metrics.jsonl` in a directory.

    Args:
        directory: The directory, made if need be, or its URL.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_tpu_estimator.spec.hooks.metrics_file import MetricsFile
    >>> directory = tempfile.mkdtemp()
    >>> MetricsFile(directory).write(100, {"loss": 0.25})
    >>> print(pathlib.Path(directory, "metrics.jsonl").read_text())
    {"step": 100, "time": ..., "loss": 0.25}
    """

    def __init__(self, directory: str):
        self._path = os.path.join(directory, FILE_NAME)
        self._file: GrowingFile | None = None

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Appends a line.

        Args:
            step: The global step.
            numbers: By name; what is not finite becomes `null`, for JSON has
                nothing else.
        """
        line = {"step": step, "time": time.time()} | {
            name: number if math.isfinite(number) else None
            for name, number in numbers.items()
        }
        if self._file is None:
            self._file = growing(self._path, resumes=True)
        written = json.dumps(line).encode() + b"\n"
        try:
            _append(written, self._file.path)
        except FileNotFoundError:
            paths.make_directory(os.path.dirname(self._path))
            _append(written, self._file.path)
        self._file.changed()


def _append(line: bytes, path: str) -> None:
    # Without a buffer, so that lines stay whole.
    with open(path, "ab", buffering=0) as file:
        file.write(line)
