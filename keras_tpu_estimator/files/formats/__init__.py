"""Checkpoints in every format: one door to read them, and who writes them."""
