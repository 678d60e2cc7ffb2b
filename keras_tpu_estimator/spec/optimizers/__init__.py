"""Optimizers of TF1 programs that Keras lacks, and those of optax."""
