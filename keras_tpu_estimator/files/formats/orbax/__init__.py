"""The trees of Orbax."""
