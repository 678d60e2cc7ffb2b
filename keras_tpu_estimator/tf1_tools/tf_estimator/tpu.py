"""The names of `tf.estimator.tpu`."""

import enum

from keras_tpu_estimator.spec.config.tpu_config import TPUConfig
from keras_tpu_estimator.tf1_tools.tf_estimator.estimators import TPUEstimator
from keras_tpu_estimator.tf1_tools.tf_estimator.run_configs import TPURunConfig

RunConfig = TPURunConfig


class ExportSavedModelApiVersion(enum.Enum):
    """The values of `export_saved_model_api_version`.

    Attributes:
        V1: One model for all devices.
        V2: One model for TPU and another for CPU.
    """

    V1 = 1
    V2 = 2


__all__ = [
    "ExportSavedModelApiVersion",
    "RunConfig",
    "TPUConfig",
    "TPUEstimator",
]
