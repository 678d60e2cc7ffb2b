"""What training leaves in a directory, and reading it again."""
