"""TF1 code as it is: a `model_fn` that builds a TensorFlow graph.

The graph is built by the TensorFlow that is installed, once for each mode and
shape, and becomes a step of the device loop. TensorFlow is imported only then.
"""

from keras_tpu_estimator.tf1.marking import model_fn
from keras_tpu_estimator.tf1.shims import lookup
from keras_tpu_estimator.tf1.shims.installing import install
from keras_tpu_estimator.tf1.spec import EstimatorSpec, TPUEstimatorSpec

__all__ = [
    "EstimatorSpec",
    "TPUEstimatorSpec",
    "install",
    "lookup",
    "model_fn",
]
