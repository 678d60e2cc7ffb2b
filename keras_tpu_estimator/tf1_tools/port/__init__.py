"""The command `port`: TensorFlow 1 sources, rewritten for Keras.

The catalogue of names contains a rule for each call. What no rule covers stays as it
is, below a comment that says what to write.
"""
