"""What a `model_fn` says: specs, optimizers, initial values."""
