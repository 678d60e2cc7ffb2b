"""From a `model_fn` in Keras code to a program."""
