"""What is in a directory of checkpoints: names, state, locks, what may go."""
