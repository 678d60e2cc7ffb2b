"""Reports about the files of training, for `python -m keras_tpu_estimator`."""
