"""The API of users: specs, hooks, metrics, optimizers and settings."""
