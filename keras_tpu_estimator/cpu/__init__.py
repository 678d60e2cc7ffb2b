"""How a traced step is written for a CPU; other devices see nothing of it."""
