"""From a user's `model_fn` to named variables and pure step functions."""
