"""Saving of a checkpoint, and reading of one into a pytree."""
