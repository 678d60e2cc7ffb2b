"""What users say: a `model_fn`'s spec, hooks, metrics, and settings."""
