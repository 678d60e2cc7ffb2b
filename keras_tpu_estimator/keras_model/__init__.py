"""A program as a `keras.Model`."""
