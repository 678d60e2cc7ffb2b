"""What is known of the names of TensorFlow 1, and who reads it."""
