"""The bundles of TensorFlow's `Saver`, and what else it has written."""
