"""TensorFlow checkpoints: of its `Saver`, and in its other formats."""
