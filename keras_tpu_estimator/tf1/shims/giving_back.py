"""Giving modules of TensorFlow's own back what they lost: tf_slim uses it.

It was written for TensorFlow 2.1. So that it does not matter who imports it,
and when, the names are put to where it looks for them.
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
    """Adds what is below `tf.python` to the modules that had it.

    What a module has stays as it is. Another call changes nothing.

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
    """Finds layers of tf-keras where it had them once.

    There TensorFlow looks for those that it calls its own.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """A specification, if the name is that of such a module."""
        if not fullname.startswith(_BEFORE):
            return None
        module = importlib.import_module(_NOW + fullname.removeprefix(_BEFORE))
        return importlib.machinery.ModuleSpec(fullname, Loader(module))


class Loader(importlib.abc.Loader):
    """Loads what is there already."""

    def __init__(self, module: types.ModuleType):
        self._module = module

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leaves it to the import system to make one, for the moment."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Puts the module in the place of that."""
        sys.modules[module.__name__] = self._module
