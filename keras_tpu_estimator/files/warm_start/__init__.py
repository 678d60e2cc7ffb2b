"""Initialization of a model's variables from another model's checkpoint."""
