"""Optimizers of `tf.contrib` that Keras lacks, and optax optimizers."""
