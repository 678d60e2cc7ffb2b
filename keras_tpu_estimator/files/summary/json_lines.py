"""The writer of a file with one JSON object a line."""

import json
import math
import os
import time
from collections.abc import Mapping
from typing import Any

from keras_tpu_estimator.files.summary import kinds
from keras_tpu_estimator.files.summary.metric_writer import MetricWriter
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage.growing_files import GrowingFile
from keras_tpu_estimator.ground.storage.growing_files import growing

FILE_NAME = "metrics.jsonl"


class JsonLines(MetricWriter):
    """Appends reports and results to `metrics.jsonl` in their directories.

    Args:
        directory: The directory, made if need be, or its URL. Defaults to
            those of the run.

    Example:

    >>> import pathlib, tempfile
    >>> import keras_tpu_estimator as kte
    >>> directory = tempfile.mkdtemp()
    >>> kte.summary.JsonLines(directory).write_scalars(100, {"loss": 0.25})
    >>> print(pathlib.Path(directory, "metrics.jsonl").read_text())
    {"step": 100, "time": ..., "loss": 0.25}
    """

    def __init__(self, directory: str = ""):
        self._path = os.path.join(directory, FILE_NAME)
        self._file: GrowingFile | None = None

    def at(self, directory: str, prefix: str) -> "JsonLines":
        """The writer of a directory."""
        del prefix
        return JsonLines(directory)

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends a line; what is not finite becomes `null`, as JSON has it."""
        line = {"step": step, "time": time.time()} | {
            name: number if math.isfinite(number) else None
            for name, number in scalars.items()
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

    def write_summary(
        self, step: int, summary: kinds.Summary, reduced: Any
    ) -> None:
        """Leaves it out: a line is a whole report."""


def _append(line: bytes, path: str) -> None:
    # Without a buffer, so that lines stay whole.
    with open(path, "ab", buffering=0) as file:
        file.write(line)
