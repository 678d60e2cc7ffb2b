"""Training with evaluations: specs, exporters and early stopping."""
