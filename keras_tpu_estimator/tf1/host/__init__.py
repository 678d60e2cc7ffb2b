"""The parts of a TF1 graph that run on the host: inputs, metrics, hooks and files."""
