"""`TPUEstimator`, the facade over the rooms below."""
