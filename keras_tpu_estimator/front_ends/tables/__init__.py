"""Embedding tables, sharded over all devices."""
