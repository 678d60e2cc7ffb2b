"""The names of `tf.estimator.tpu`."""

import copy
import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.estimator import tpu_estimator
from keras_tpu_estimator.tf1_tools.tf_estimator.estimators import TPUEstimator
from keras_tpu_estimator.tf1_tools.tf_estimator.run_configs import TPURunConfig
from keras_tpu_estimator.tf1_tools.tf_estimator.tpu_config import TPUConfig

RunConfig = TPURunConfig


class ExportSavedModelApiVersion(enum.Enum):
    """The values of `export_saved_model_api_version`.

    Attributes:
        V1: One model for all devices.
        V2: One model for TPU and another for CPU.
    """

    V1 = 1
    V2 = 2


def export_estimator_savedmodel(
    estimator: tpu_estimator.TPUEstimator,
    export_dir_base: PathLike,
    serving_input_receiver_fn: Callable[[], Any],
    assets_extra: Mapping[str, str] | None = None,
    as_text: bool = False,
    checkpoint_path: PathLike | None = None,
) -> str:
    """Exports an estimator, also with the tags of a TPU.

    Args:
        estimator: An `Estimator` or `TPUEstimator`.
        export_dir_base: As in its `export_saved_model`, like all others.
        serving_input_receiver_fn: See there.
        assets_extra: See there.
        as_text: See there.
        checkpoint_path: See there.
    """
    exporting = copy.copy(estimator)
    exporting._export_targets = dataclasses.replace(
        estimator._export_targets, to_tpu=True
    )
    return exporting.export_saved_model(
        export_dir_base,
        serving_input_receiver_fn,
        assets_extra,
        as_text,
        checkpoint_path,
    )


__all__ = [
    "ExportSavedModelApiVersion",
    "RunConfig",
    "TPUConfig",
    "TPUEstimator",
    "export_estimator_savedmodel",
]
