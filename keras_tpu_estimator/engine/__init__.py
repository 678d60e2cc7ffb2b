"""Runs programs on devices, whoever wrote them, in whatever way."""
