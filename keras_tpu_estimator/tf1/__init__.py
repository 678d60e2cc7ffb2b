"""The front end for a `model_fn` that builds a TensorFlow 1 graph.

The installed TensorFlow builds the graph once for each mode and shape, and the graph
becomes a step of the device loop. TensorFlow is imported only then.
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
