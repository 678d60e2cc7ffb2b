"""The base class of writers of metrics, images and texts."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_tpu_estimator.files.summary import kinds
from keras_tpu_estimator.files.summary.kinds import Buckets


class MetricWriter:
    """A base class of writers of training and evaluation metrics.

    A subclass must define `write_scalars`, and may override other methods. They
    are called only on the chief, by one thread at a time. The methods are those
    of `clu.metric_writers`, whose writers are also supported.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> class Printer(kte.summary.MetricWriter):
    ...     def write_scalars(self, step, scalars):
    ...         print(step, scalars)
    >>> config = kte.RunConfig(metric_writers=["tensorboard", Printer()])
    """

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes numbers.

        Args:
            step: The global step that they belong to.
            scalars: Numbers by name. In training these are "loss" and the other
                logged metrics. The names of an evaluation begin with "eval/",
                or with "eval_" and its name.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must have a method `write_scalars(step, "
            "scalars)`. Define it."
        )

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Writes images from `summary.image`; does nothing by default.

        Args:
            step: The global step.
            images: uint8 arrays of shape `[images, height, width, channels]`.
        """

    def write_texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Writes texts from `summary.text`; does nothing by default.

        Args:
            step: The global step.
            texts: Texts in Markdown.
        """

    def write_bucket_counts(
        self, step: int, counts: Mapping[str, tuple[np.ndarray, np.ndarray]]
    ) -> None:
        """Writes counts from `summary.histogram`; does nothing by default.

        Args:
            step: The global step.
            counts: Counts of shape `[buckets]` and edges of shape `[buckets +
                1]`, as `np.histogram` returns them.
        """

    def write_start(self, step: int) -> None:
        """Marks the start of a call of `train`; does nothing by default.

        Earlier values of this step and later ones are obsolete, because training
        continues at an older checkpoint.

        Args:
            step: The first global step of the call.
        """

    def flush(self) -> None:
        """Makes written values visible to others; does nothing by default."""

    def at(self, directory: str, prefix: str) -> "MetricWriter":
        """Returns the writer for training, or for one evaluation.

        Args:
            directory: The directory for files of this writer.
            prefix: The prefix of names in other writers, such as "eval/"; empty
                for training.
        """
        del directory
        return _Prefixed(self, prefix) if prefix else self

    def write_report(self, step: int, numbers: Mapping[str, float]) -> None:
        """Writes the logged metrics of training, including the loss."""
        self.write_scalars(step, numbers)

    # Whether programs may compare its files with those of the original.
    has_events = False

    def write_times(self, step: int, seconds: Mapping[str, float]) -> None:
        """Writes the times of runs, at the end of `train`."""
        self.write_scalars(step, seconds)

    def write_loss(self, step: int, loss: float) -> None:
        """Writes the loss of a summary; logged metrics also contain it."""

    def write_result(
        self, step: int, result: Mapping[str, Any], checkpoint: str | None
    ) -> None:
        """Writes the result of an evaluation of a checkpoint."""
        del checkpoint
        self.write_scalars(step, scalars_of(result))

    def write_summary(self, step: int, summary: kinds.Summary, reduced: Any) -> None:
        """Writes a recorded summary with its reduced tensors."""
        tag = summary.tag
        match summary:
            case kinds.Scalar():
                self.write_scalars(step, {tag: float(reduced)})
            case kinds.Image():
                self.write_images(step, {tag: np.asarray(reduced)})
            case kinds.Histogram():
                self.write_bucket_counts(step, {tag: _counts(reduced)})
            case kinds.Text():
                text = b"\n\n".join(summary.strings).decode()
                self.write_texts(step, {tag: text})


class _Prefixed(MetricWriter):
    """A writer that adds a prefix to all names."""

    def __init__(self, writer: MetricWriter, prefix: str):
        self._writer, self._prefix = writer, prefix

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        self._writer.write_scalars(step, self._named(scalars))

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        self._writer.write_images(step, self._named(images))

    def write_texts(self, step: int, texts: Mapping[str, str]) -> None:
        self._writer.write_texts(step, self._named(texts))

    def write_bucket_counts(
        self, step: int, counts: Mapping[str, tuple[np.ndarray, np.ndarray]]
    ) -> None:
        self._writer.write_bucket_counts(step, self._named(counts))

    def flush(self) -> None:
        self._writer.flush()

    def _named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {f"{self._prefix}{name}": value for name, value in values.items()}


class Foreign(MetricWriter):
    """A `MetricWriter` around another writer, such as one of `clu.metric_writers`."""

    def __init__(self, writer: Any):
        self._writer = writer

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Passes numbers to the writer."""
        self._writer.write_scalars(step, scalars)

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Passes images to the writer, if it supports them."""
        if hasattr(self._writer, "write_images"):
            self._writer.write_images(step, images)

    def write_texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Passes texts to the writer, if it supports them."""
        if hasattr(self._writer, "write_texts"):
            self._writer.write_texts(step, texts)

    def flush(self) -> None:
        """Flushes the writer, if it supports that."""
        if hasattr(self._writer, "flush"):
            self._writer.flush()


class SeveralWriters:
    """Passes the same values to several writers, one thread at a time."""

    def __init__(self, writers: Sequence[MetricWriter]):
        self._writers = writers
        self._lock = threading.Lock()

    def write_start(self, step: int) -> None:
        """Marks the start of a call of `train`."""
        with self._lock:
            for writer in self._writers:
                writer.write_start(step)

    def write_report(self, step: int, numbers: Mapping[str, float]) -> None:
        """Writes the logged metrics of training."""
        with self._lock:
            for writer in self._writers:
                writer.write_report(step, numbers)

    def write_times(
        self, step: int, seconds: Mapping[str, float], omits_events: bool
    ) -> None:
        """Writes the times of runs, if requested not to event files."""
        with self._lock:
            for writer in self._writers:
                if not (omits_events and writer.has_events):
                    writer.write_times(step, seconds)

    def write_loss(self, step: int, loss: float) -> None:
        """Writes the loss at the step of a summary."""
        with self._lock:
            for writer in self._writers:
                writer.write_loss(step, loss)

    def write_result(
        self, step: int, result: Mapping[str, Any], checkpoint: str | None
    ) -> None:
        """Writes the result of an evaluation."""
        with self._lock:
            for writer in self._writers:
                writer.write_result(step, result, checkpoint)

    def write_summary(self, step: int, summary: kinds.Summary, reduced: Any) -> None:
        """Writes a summary."""
        with self._lock:
            for writer in self._writers:
                writer.write_summary(step, summary, reduced)

    def flush(self) -> None:
        """Makes all written values visible to others."""
        with self._lock:
            for writer in self._writers:
                writer.flush()


def scalars_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers among the results of an evaluation."""
    return {
        name: float(value)
        for name, value in result.items()
        if name != "global_step"
        and isinstance(value, int | float | np.number | np.bool_)
    }


def _counts(buckets: Buckets) -> tuple[np.ndarray, np.ndarray]:
    table = buckets.table()
    return table[:, 2], np.append(table[:, 0], table[-1:, 1])
