"""Training that evaluations accompany, and what they lead to."""
