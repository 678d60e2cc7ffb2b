"""Writing a checkpoint into a directory."""
