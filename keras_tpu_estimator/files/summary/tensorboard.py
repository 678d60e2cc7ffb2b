"""The writer of event files."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_tpu_estimator.files.summary import kinds
from keras_tpu_estimator.files.summary.event_writer import EventWriter
from keras_tpu_estimator.files.summary.metric_writer import MetricWriter


class TensorBoard(MetricWriter):
    """Writes what TensorBoard shows into `model_dir` and `eval_dir()`."""

    def __init__(self, directory: str | None = None):
        self._directory = directory

    def at(self, directory: str, prefix: str) -> "TensorBoard":
        """The writer of a directory."""
        del prefix
        return TensorBoard(directory)

    @property
    def _events(self) -> EventWriter:
        if self._directory is None:
            raise RuntimeError("Expected a directory. Received: None.")
        return EventWriter.for_dir(self._directory)

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes numbers."""
        self._events.scalars(scalars, step)

    def write_report(self, step: int, numbers: Mapping[str, float]) -> None:
        """Writes a report without its loss, which comes as a summary."""
        self.write_scalars(
            step, {n: value for n, value in numbers.items() if n != "loss"}
        )

    def write_loss(self, step: int, loss: float) -> None:
        """Writes the loss."""
        self.write_scalars(step, {"loss": loss})

    def write_result(
        self, step: int, result: Mapping[str, Any], checkpoint: str | None
    ) -> None:
        """Writes a result, arrays and images among it."""
        events = self._events
        events.metrics(result, step)
        if checkpoint is not None:
            events.text("checkpoint_path", checkpoint, step)

    def write_summary(
        self, step: int, summary: kinds.Summary, reduced: Any
    ) -> None:
        """Writes a summary of any kind."""
        self._events.write(summary.serialized(reduced), step)

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Writes images."""
        for tag, each in images.items():
            summary = kinds.Image(tag=tag, max_outputs=len(each))
            self.write_summary(step, summary, each)

    def write_texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Writes texts."""
        for tag, text in texts.items():
            self._events.text(tag, text, step)

    def flush(self) -> None:
        """Makes what was written readable by others."""
        self._events.flush()
