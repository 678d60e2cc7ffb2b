"""The mesh of cores, and what one core may ask of the others."""
