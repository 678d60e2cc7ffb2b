"""Calls of each supported function of `tf.contrib`, by name.

TensorFlow 1.15 and this package run them.
"""
