"""The mesh of cores, and communication between cores."""
