"""For those who have programs of TensorFlow 1: `tf.estimator`, and advice."""
