"""Programs as Keras models."""
