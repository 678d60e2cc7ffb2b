"""Tracing code that makes variables, as pure functions of these variables."""
