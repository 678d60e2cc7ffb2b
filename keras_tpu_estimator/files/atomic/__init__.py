"""Atomic file writes, and checksums that detect corruption."""
