"""Private names and replaced functions of Keras, JAX and TensorFlow."""
