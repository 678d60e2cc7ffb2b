"""The configuration of an estimator, and its checks."""
