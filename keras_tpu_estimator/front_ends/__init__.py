"""The ways to write a `model_fn`: one front end for each."""
