"""Summaries and metric writers."""
