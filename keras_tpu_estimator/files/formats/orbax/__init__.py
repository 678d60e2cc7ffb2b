"""Reading and writing of Orbax checkpoints."""
