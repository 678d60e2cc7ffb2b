"""A checkpoint directory: names, state, locks, and deletion of files."""
