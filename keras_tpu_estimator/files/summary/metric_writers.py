"""The metric writers of this package, by name."""

import importlib
import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.hosts.parent_process import restarts
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.growing_files import GrowingFile, growing
from keras_tpu_estimator.files.summary import kinds
from keras_tpu_estimator.files.summary.event_writer import EventWriter
from keras_tpu_estimator.files.summary.metric_writer import (
    Foreign,
    MetricWriter,
    SeveralWriters,
)

_logger = logging.getLogger("keras_tpu_estimator")


class Mlflow(MetricWriter):
    """Logs into the active MLflow run, or into one that MLflow starts.

    Needs `pip install mlflow`, or `mlflow-skinny`. Tested with 3.17.

    Raises:
        ImportError: MLflow is not installed. This is raised when metrics are
            first logged.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> config = kte.RunConfig(metric_writers=["tensorboard", "mlflow"])
    """

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Logs numbers."""
        _mlflow().log_metrics(dict(scalars), step=step)

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Logs images, for which MLflow needs Pillow."""
        for name, batch in images.items():
            for number, image in enumerate(batch):
                key = f"{name}/{number}" if len(batch) > 1 else name
                # MLflow's grey images have no axis of channels.
                image = image[..., 0] if image.shape[-1] == 1 else image
                _mlflow().log_image(image, key=key, step=step)


def warn_of_autolog() -> None:
    """Warns if MLflow's autologging is on, because it ignores estimators."""
    utils = sys.modules.get("mlflow.utils.autologging_utils")
    autologging = getattr(utils, "AUTOLOGGING_INTEGRATIONS", {}).get("keras")
    if autologging is not None and not autologging.get("disable"):
        _logger.warning(
            "MLflow's autologging does not log estimators: it supports only "
            "`fit` of Keras models. Choose "
            'RunConfig(metric_writers=["tensorboard", "jsonl", '
            '"mlflow"]) to log into the active run.'
        )


def _mlflow() -> Any:
    try:
        return importlib.import_module("mlflow")
    except ImportError as error:
        raise ImportError(
            "The metric writer 'mlflow' needs the package MLflow, which is "
            "not installed. Run `pip install mlflow`."
        ) from error


# Steps of evaluations and host calls may be logged after later ones.
_WANDB_STEP = "global_step"


class Wandb(MetricWriter):
    """Logs into the current run of Weights & Biases, or into a new one.

    Numbers are plotted over `global_step`. Needs `pip install wandb`. Tested
    with 0.31.

    Args:
        **settings: The arguments of `wandb.init` for a new run, such as
            `project` and `name`.

    Raises:
        ImportError: wandb is not installed. This is raised when metrics are
            first logged.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> digits = kte.summary.Wandb(project="digits")
    >>> config = kte.RunConfig(metric_writers=["tensorboard", digits])
    """

    def __init__(self, **settings: Any):
        self._settings = settings
        self._run: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns the settings, without the run."""
        return {"_settings": self._settings, "_run": None}

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Logs numbers."""
        self._log(step, scalars)

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Logs images."""
        of = _wandb().Image
        self._log(step, {n: [of(i) for i in batch] for n, batch in images.items()})

    def write_texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Logs texts as HTML."""
        of = _wandb().Html
        self._log(step, {name: of(text) for name, text in texts.items()})

    def write_bucket_counts(
        self, step: int, counts: Mapping[str, tuple[np.ndarray, np.ndarray]]
    ) -> None:
        """Logs histograms."""
        of = _wandb().Histogram
        self._log(
            step,
            {name: of(np_histogram=histogram) for name, histogram in counts.items()},
        )

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        wandb = _wandb()
        run = wandb.run or wandb.init(**self._settings)
        if run is not self._run:
            run.define_metric(_WANDB_STEP)
            run.define_metric("*", step_metric=_WANDB_STEP)
            self._run = run
        run.log({**values, _WANDB_STEP: step})


def _wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise ImportError(
            "The metric writer 'wandb' needs the package of Weights & Biases, "
            "which is not installed. Run `pip install wandb`."
        ) from error


class TensorBoard(MetricWriter):
    """Writes event files for TensorBoard.

    Args:
        directory: The directory for training, created if necessary, or its URL.
            Evaluations have folders in it, such as "eval". Defaults to
            `model_dir` and `eval_dir()`.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> events = kte.summary.TensorBoard("/logs/first")
    >>> config = kte.RunConfig(metric_writers=[events, "jsonl"])
    """

    has_events = True

    def __init__(self, directory: PathLike = ""):
        self._directory = os.fsdecode(directory)

    def at(self, directory: str, prefix: str) -> "TensorBoard":
        """Returns the writer for training, or for one evaluation."""
        return TensorBoard(_within(self._directory, prefix) or directory)

    @property
    def _events(self) -> EventWriter:
        if not self._directory:
            raise RuntimeError(
                "`directory` must be set outside a run. Received: ''. Pass a directory."
            )
        return EventWriter.for_dir(self._directory)

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes numbers."""
        self._events.scalars(scalars, step)

    def write_start(self, step: int) -> None:
        """Marks the start of a call of `train`, as the original does."""
        self._events.session_start(step)

    def write_report(self, step: int, numbers: Mapping[str, float]) -> None:
        """Writes logged metrics, except the loss, which is a summary."""
        self.write_scalars(
            step, {n: value for n, value in numbers.items() if n != "loss"}
        )

    def write_loss(self, step: int, loss: float) -> None:
        """Writes the loss."""
        self.write_scalars(step, {"loss": loss})

    def write_result(
        self, step: int, result: Mapping[str, Any], checkpoint: str | None
    ) -> None:
        """Writes a result, including arrays and images."""
        events = self._events
        events.metrics(result, step)
        if checkpoint is not None:
            events.text("checkpoint_path", checkpoint, step)

    def write_summary(self, step: int, summary: kinds.Summary, reduced: Any) -> None:
        """Writes a summary of any kind."""
        self._events.write(summary.serialized(reduced), step)

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Writes images."""
        for tag, batch in images.items():
            summary = kinds.Image(tag=tag, max_outputs=len(batch))
            self.write_summary(step, summary, batch)

    def write_texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Writes texts."""
        for tag, text in texts.items():
            self._events.text(tag, text, step)

    def flush(self) -> None:
        """Makes all written values readable by other programs."""
        self._events.flush()


_JSON_LINES = "metrics.jsonl"


class JsonLines(MetricWriter):
    """Appends metrics and results to `metrics.jsonl` in their directories.

    Args:
        directory: The directory for training, created if necessary, or its URL.
            Evaluations have folders in it, such as "eval". Only one process
            may write a file at a URL. Defaults to `model_dir` and `eval_dir()`.

    Example:

    >>> import pathlib, tempfile
    >>> import keras_tpu_estimator as kte
    >>> directory = tempfile.mkdtemp()
    >>> kte.summary.JsonLines(directory).write_scalars(100, {"loss": 0.25})
    >>> print(pathlib.Path(directory, "metrics.jsonl").read_text())
    {"step": 100, "time": ..., "loss": 0.25}
    """

    def __init__(self, directory: PathLike = ""):
        self._directory = os.fsdecode(directory)
        self._path = os.path.join(self._directory, _JSON_LINES)
        self._file: GrowingFile | None = None
        self._start: dict[str, float] = {}
        # The newest line.
        self._newest: tuple[int, Mapping[str, float]] = (-1, {})

    def at(self, directory: str, prefix: str) -> "JsonLines":
        """Returns the writer for training, or for one evaluation."""
        return JsonLines(_within(self._directory, prefix) or directory)

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends a line; numbers that are not finite become `null`."""
        numbers = {
            name: number if math.isfinite(number) else None
            for name, number in scalars.items()
        }
        line = {"step": step, "time": time.time()} | self._start | numbers
        self._start = {}
        self._newest = step, scalars
        if self._file is None:
            self._file = growing(self._path, resumes=True)
        written = json.dumps(line).encode() + b"\n"
        try:
            _append(written, self._file.path)
        except FileNotFoundError:
            paths.make_directory(os.path.dirname(self._path))
            _append(written, self._file.path)
        self._file.changed()

    def write_times(self, step: int, seconds: Mapping[str, float]) -> None:
        """Appends a line that repeats the other numbers of the step.

        The last line of a training therefore has the last value of all metrics.
        """
        newest, numbers = self._newest
        self.write_scalars(step, {**(numbers if newest == step else {}), **seconds})

    def write_start(self, step: int) -> None:
        """Adds the field `start` to the next line, and `restarts` of a launched job."""
        number = restarts()
        self._start = {"start": step}
        if number:
            self._start["restarts"] = number

    def write_summary(self, step: int, summary: kinds.Summary, reduced: Any) -> None:
        """Ignores the summary, because each line has all metrics of a step."""


def _within(directory: str, prefix: str) -> str:
    """Returns the folder of a user's directory for a prefix; "" without a directory."""
    name = prefix.rstrip("/")
    return os.path.join(directory, name) if directory and name else directory


def _append(line: bytes, path: str) -> None:
    # There is no buffer, so that each line is written at once.
    with open(path, "ab", buffering=0) as file:
        file.write(line)


_BY_NAME: dict[str, MetricWriter] = {
    "tensorboard": TensorBoard(),
    "jsonl": JsonLines(),
    "wandb": Wandb(),
    "mlflow": Mlflow(),
}


def opened(writers: Iterable[object], directory: str, prefix: str) -> SeveralWriters:
    """Returns the chosen writers as one, for the arguments of `MetricWriter.at`."""
    return SeveralWriters([_writer(writer).at(directory, prefix) for writer in writers])


def warn_if_autologging(writers: Iterable[object]) -> None:
    """Warns of MLflow's autologging if no MLflow writer is chosen."""
    if not any(isinstance(_writer(writer), Mlflow) for writer in writers):
        warn_of_autolog()


def _writer(writer: object) -> MetricWriter:
    if isinstance(writer, str):
        return _BY_NAME[writer]
    return writer if isinstance(writer, MetricWriter) else Foreign(writer)
