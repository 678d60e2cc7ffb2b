"""The entry point for reading all checkpoint formats, and their writers."""
