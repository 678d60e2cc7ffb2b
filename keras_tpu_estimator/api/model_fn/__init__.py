"""Code in a `model_fn`: specs, optimizers, initial values."""
