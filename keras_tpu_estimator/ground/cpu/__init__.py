"""How operations are written for a CPU; other devices see nothing of it."""
