"""One set of names for local files and files behind URLs.

A path remains as users passed it, including URLs, until it reaches the functions here.
They use `os` for local paths, and fsspec's file systems for URLs.
"""
