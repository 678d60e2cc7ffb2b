"""The functions of `tf.compat.v1.metrics`."""
