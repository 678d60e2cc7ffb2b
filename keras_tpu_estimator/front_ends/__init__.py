"""The front ends: the ways to write a `model_fn`."""
