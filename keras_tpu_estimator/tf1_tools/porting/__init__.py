"""What to write in place of each name of TensorFlow 1."""
