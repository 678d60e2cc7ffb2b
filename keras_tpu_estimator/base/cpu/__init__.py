"""Rewriting and compiling operations for a CPU; other devices are unaffected."""
