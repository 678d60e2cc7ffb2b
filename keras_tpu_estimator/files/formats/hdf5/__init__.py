"""This package's own format: named variables in HDF5, with checksums."""
