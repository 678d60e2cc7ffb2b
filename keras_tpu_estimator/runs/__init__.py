"""One call of `train`, `evaluate` or `predict`: the work of the host."""
