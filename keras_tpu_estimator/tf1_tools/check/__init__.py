"""What a program of TensorFlow 1 uses, read from its source.

python -m keras_tpu_estimator check PATH
"""
