"""The front end of Keras code: from a `model_fn` to a program."""
