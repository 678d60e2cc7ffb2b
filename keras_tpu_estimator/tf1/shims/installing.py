"""Adding removed TF1 names to the TensorFlow of this process.

tf_slim was written for TensorFlow 2.1. The names that it uses are restored in the
modules where it looks for them, so that it can be imported from anywhere at any time.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

from keras_tpu_estimator.tf1.names.catalogue import catalogue, path_of
from keras_tpu_estimator.tf1.shims.resolving import (
    LookAlike,
    MissingNameError,
    is_known,
    resolve,
    resolve_module,
)

_BEFORE, _NOW = "tf_keras.legacy_tf_layers", "tf_keras.src.legacy_tf_layers"


def give_back() -> None:
    """Restores missing names below `tf.python` in the modules that had them."""
    if not any(isinstance(finder, _LayersFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LayersFinder())
    for entry in catalogue().entries.values():
        if entry.owner.startswith("python."):
            module = importlib.import_module(f"tensorflow.{entry.owner}")
            if not hasattr(module, entry.name):
                setattr(module, entry.name, resolve(entry.path))


class _LayersFinder(importlib.abc.MetaPathFinder):
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


# Modules below `tf.compat.v1`, each with a name that tells whether it works.
_LAZY = {"layers": "dense", "nn.rnn_cell": "RNNCell"}


def install() -> None:
    """Adds TF1 names that TensorFlow has removed to the installed TensorFlow.

    It adds `tf.estimator`, `tf.contrib`, and `tf.compat.v1.estimator`, `.layers` and
    `.nn.rnn_cell` for all code of the process, which can also import them. Names that
    work do not change. For example, `tf.keras` remains Keras 3, whose layers do not
    work in TF1 graphs. Another call has no effect.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> kte.tf1.install()
    >>> import tensorflow.compat.v1 as tf
    >>> tf.estimator.tpu.TPUConfig(iterations_per_loop=100).iterations.value
    100
    >>> from tensorflow.contrib import tpu
    >>> tpu.InputPipelineConfig.PER_HOST_V2.name
    'PER_HOST_V2'
    """
    import tensorflow as tf
    import tensorflow.compat.v1 as imported

    give_back()
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # The last finder, which is used for modules that others do not find.
        sys.meta_path.append(_Finder())
    # TensorFlow has this module twice: as an attribute, and under its name.
    for module in (tf, tf.compat.v1, imported):
        for name in ("contrib", "estimator"):
            if not hasattr(module, name):
                setattr(module, name, resolve(name))
    for path, sign in _LAZY.items():
        above, _, name = path.rpartition(".")
        for module in (tf.compat.v1, imported):
            owner = getattr(module, above) if above else module
            if not _works(getattr(owner, name, None), sign):
                setattr(owner, name, resolve(path))


def _works(module: Any, sign: str) -> bool:
    try:
        return hasattr(module, sign)
    except ImportError:
        return False


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules of TF1 by their names."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns a specification if the name is that of a TF1 module."""
        name = path_of(fullname)
        if name is None:
            return None
        parent = sys.modules.get(fullname.rpartition(".")[0])
        if not is_known(name) and not isinstance(parent, LookAlike):
            return None
        try:
            module = resolve_module(name)
        except MissingNameError as error:
            if isinstance(parent, LookAlike):
                raise ImportError(str(error), name=fullname) from error
            return None
        if not isinstance(module, types.ModuleType):
            return None
        return importlib.machinery.ModuleSpec(fullname, Loader(module))
