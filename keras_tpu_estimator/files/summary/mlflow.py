"""The writer of runs of MLflow, whose package it imports."""

import importlib
import logging
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_tpu_estimator.files.summary.metric_writer import MetricWriter

_logger = logging.getLogger("keras_tpu_estimator")


class Mlflow(MetricWriter):
    """Logs into a run of MLflow: the active one, or one that MLflow starts.

    Needs `pip install mlflow`, or `mlflow-skinny`, tried with 3.17.

    Raises:
        ImportError: MLflow is not installed. It is looked for when a run is
            first reported.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> config = kte.RunConfig(metric_writers=["tensorboard", "mlflow"])
    """

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Logs numbers."""
        _mlflow().log_metrics(dict(scalars), step=step)

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Logs images, for which MLflow needs Pillow."""
        for name, each in images.items():
            for number, image in enumerate(each):
                key = f"{name}/{number}" if len(each) > 1 else name
                # Grey ones have no axis of channels there.
                image = image[..., 0] if image.shape[-1] == 1 else image
                _mlflow().log_image(image, key=key, step=step)


def warn_of_autolog() -> None:
    """Says that MLflow's autologging, if it is on, sees nothing of this."""
    utils = sys.modules.get("mlflow.utils.autologging_utils")
    found = getattr(utils, "AUTOLOGGING_INTEGRATIONS", {}).get("keras")
    if found is not None and not found.get("disable"):
        _logger.warning(
            "MLflow's autologging logs nothing of an estimator: it follows "
            "`fit` of Keras models. Choose "
            'RunConfig(metric_writers=["tensorboard", "jsonl", "mlflow"]) to '
            "log into the active run."
        )


def _mlflow() -> Any:
    try:
        return importlib.import_module("mlflow")
    except ImportError as error:
        raise ImportError(
            "The metric writer 'mlflow' should find the package of MLflow. "
            "Received none. Install it by `pip install mlflow`."
        ) from error
