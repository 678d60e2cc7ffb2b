"""Modes, records and checks that every other part of the package uses."""
