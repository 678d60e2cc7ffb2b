"""A call of each function of `tf.contrib` that is supplied, by its name.

They run under TensorFlow 1.15 and under this package.
"""
