"""Proofs that two programs are one: recorded runs, and their first difference."""
