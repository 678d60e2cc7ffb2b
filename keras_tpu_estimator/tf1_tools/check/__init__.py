"""A checker that reads a TF1 script without running it.

python -m keras_tpu_estimator check PATH
"""
