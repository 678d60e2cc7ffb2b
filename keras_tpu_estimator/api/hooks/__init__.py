"""Hooks: user code in the training loop."""
