"""TF1 optimizers that Keras lacks, and optax optimizers."""
