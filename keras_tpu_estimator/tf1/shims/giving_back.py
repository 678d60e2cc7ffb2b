"""Restoring names in TensorFlow's own modules, which tf_slim uses.

tf_slim was written for TensorFlow 2.1. The names are restored in the modules where it
looks for them, so that it can be imported from anywhere at any time.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence

from keras_tpu_estimator.tf1.names.catalogue import catalogue
from keras_tpu_estimator.tf1.shims.resolving import resolve

_BEFORE, _NOW = "tf_keras.legacy_tf_layers", "tf_keras.src.legacy_tf_layers"


def give_back() -> None:
    """Restores names below `tf.python` in the modules that had them.

    Existing names do not change. Another call has no effect.

    Example:

    >>> give_back()
    >>> from tensorflow.python.ops.control_flow_ops import cond
    >>> cond.__module__
    'tensorflow.python.ops.cond'
    """
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for entry in catalogue().entries.values():
        if entry.owner.startswith("python."):
            module = importlib.import_module(f"tensorflow.{entry.owner}")
            if not hasattr(module, entry.name):
                setattr(module, entry.name, resolve(entry.path))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds layers of tf-keras at their old place, where TensorFlow looks for them."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns a specification if the name is that of such a module."""
        if not fullname.startswith(_BEFORE):
            return None
        module = importlib.import_module(_NOW + fullname.removeprefix(_BEFORE))
        return importlib.machinery.ModuleSpec(fullname, Loader(module))


class Loader(importlib.abc.Loader):
    """Loads an existing module."""

    def __init__(self, module: types.ModuleType):
        self._module = module

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Lets the import system make a temporary module."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Replaces the temporary module by the existing one."""
        sys.modules[module.__name__] = self._module
