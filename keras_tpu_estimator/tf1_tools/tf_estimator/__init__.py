"""The estimators of this package under their `tf.estimator` names."""

from keras_tpu_estimator.tf1_tools.tf_estimator.estimators import Estimator
from keras_tpu_estimator.tf1_tools.tf_estimator.run_configs import RunConfig

__all__ = ["Estimator", "RunConfig"]
