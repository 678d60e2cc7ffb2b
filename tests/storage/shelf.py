"""A store that several processes share: a local directory with URLs.

Like an object store, it creates the directories of new objects on request. It can also
be made to fail.
"""

import os

import fsspec
from fsspec.implementations.local import LocalFileSystem

ROOT = "SHELF_ROOT"
_PREFIX = "shelf://"


class Shelf(LocalFileSystem):
    """The file system of 'shelf://' URLs, below a directory."""

    protocol = "shelf"

    @classmethod
    def _strip_protocol(cls, path):
        path = os.fspath(path)
        if path.startswith(_PREFIX):
            path = os.path.join(os.environ[ROOT], path.removeprefix(_PREFIX))
        return super()._strip_protocol(path)

    def unstrip_protocol(self, name):
        return _PREFIX + os.path.relpath(name, os.environ[ROOT])


def register():
    """Registers these URLs with fsspec."""
    fsspec.register_implementation("shelf", Shelf, clobber=True)
