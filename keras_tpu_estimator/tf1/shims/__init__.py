"""What TensorFlow no longer has of TF1, for the programs that use it."""

from keras_tpu_estimator.tf1.shims.looking_up import Name, Status, lookup

__all__ = ["Name", "Status", "lookup"]
