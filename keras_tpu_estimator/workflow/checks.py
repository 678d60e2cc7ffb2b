"""Checks that the functions of this room share."""

from typing import Any

from keras_tpu_estimator.estimator import TPUEstimator
from keras_tpu_estimator.ground.base.shown import shown


def check_estimator(estimator: Any) -> None:
    """Checks that an argument is a `TPUEstimator`."""
    if not isinstance(estimator, TPUEstimator):
        raise TypeError(
            "`estimator` must be a TPUEstimator. Received: "
            f"{shown(estimator)}. Make one with "
            "keras_tpu_estimator.TPUEstimator."
        )
