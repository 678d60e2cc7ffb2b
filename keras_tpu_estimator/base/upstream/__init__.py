"""What this package takes from and replaces in Keras, JAX and TensorFlow."""
