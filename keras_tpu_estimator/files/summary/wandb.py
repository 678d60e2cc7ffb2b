"""The writer of runs of Weights & Biases, whose package it imports."""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_tpu_estimator.files.summary.metric_writer import MetricWriter

# Steps of evaluations and of host calls may come after later ones.
_STEP = "global_step"


class Wandb(MetricWriter):
    """Logs into a run of Weights & Biases: the current one, or a new one.

    Numbers are plotted over `global_step`. Needs `pip install wandb`, tried
    with 0.31.

    Args:
        **settings: What `wandb.init` is called with where there is no run
            yet, such as `project` and `name`.

    Raises:
        ImportError: wandb is not installed. It is looked for when a run is
            first reported.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> digits = kte.summary.Wandb(project="digits")
    >>> config = kte.RunConfig(metric_writers=["tensorboard", digits])
    """

    def __init__(self, **settings: Any):
        self._settings = settings
        self._run: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Its settings, without the run."""
        return {"_settings": self._settings, "_run": None}

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Logs numbers."""
        self._log(step, scalars)

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Logs images."""
        of = _wandb().Image
        self._log(
            step, {n: [of(i) for i in each] for n, each in images.items()}
        )

    def write_texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Logs texts, as HTML shows them."""
        of = _wandb().Html
        self._log(step, {name: of(text) for name, text in texts.items()})

    def write_bucket_counts(
        self, step: int, counts: Mapping[str, tuple[np.ndarray, np.ndarray]]
    ) -> None:
        """Logs histograms."""
        of = _wandb().Histogram
        self._log(
            step,
            {name: of(np_histogram=each) for name, each in counts.items()},
        )

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        wandb = _wandb()
        run = wandb.run or wandb.init(**self._settings)
        if run is not self._run:
            run.define_metric(_STEP)
            run.define_metric("*", step_metric=_STEP)
            self._run = run
        run.log({**values, _STEP: step})


def _wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise ImportError(
            "The metric writer 'wandb' should find the package of Weights & "
            "Biases. Received none. Install it by `pip install wandb`."
        ) from error
