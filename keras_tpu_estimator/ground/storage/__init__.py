"""Files on this machine or behind a URL, under one set of names.

A path stays what users gave, a URL included, down to the functions here: they
leave local paths to `os`, and URLs to the file systems of fsspec.
"""
