"""Tools for TF1 scripts: a `tf.estimator` for them, and a checker."""
