"""One call of `train`, `evaluate` or `predict`: the host beside the devices."""
