"""What every room knows: modes, records, and how they are checked."""
