"""The catalogue of TensorFlow 1 names, and its readers."""
