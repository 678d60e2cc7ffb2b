"""What training has written, for who looks at it from outside.

Behind the command `python -m keras_tpu_estimator`.
"""
