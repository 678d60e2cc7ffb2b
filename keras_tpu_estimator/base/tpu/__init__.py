"""Computations on the cores of a TPU."""
