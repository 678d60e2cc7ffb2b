"""Building a TF1 graph, and reading it: definitions, variables and scaffolds."""
