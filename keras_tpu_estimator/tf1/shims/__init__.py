"""The TF1 names that TensorFlow has removed, for scripts that use them."""

from keras_tpu_estimator.tf1.shims.resolving import Name, Status, lookup

__all__ = ["Name", "Status", "lookup"]
