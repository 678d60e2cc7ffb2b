"""Adding to the TensorFlow of this process what it lacks of TF1."""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

from keras_tpu_estimator.tf1.names.aliases import path_of
from keras_tpu_estimator.tf1.shims.giving_back import Loader, give_back
from keras_tpu_estimator.tf1.shims.resolving import (
    LookAlike,
    MissingNameError,
    is_known,
    resolve,
    resolve_module,
)

# Below `tf.compat.v1`, with a name by which it is seen whether they work.
_LAZY = {"layers": "dense", "nn.rnn_cell": "RNNCell"}


def install() -> None:
    """Adds to the installed TensorFlow what it no longer has of TF1.

    `tf.estimator`, `tf.contrib`, and `tf.compat.v1.estimator`, `.layers` and
    `.nn.rnn_cell` are there afterwards, for all code of the process, and can be
    imported. What TensorFlow has, and what works, stays as it is: `tf.keras`,
    for one, is Keras 3, which makes no layers for TF1. Another call changes
    nothing.

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
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        # The last one: asked for what there is not.
        sys.meta_path.append(_Finder())
    # TensorFlow has this module twice, by its attribute and by its name.
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
        """A specification, if the name is that of a module of TF1's."""
        name = path_of(fullname)
        if name is None:
            return None
        parent = sys.modules.get(fullname.rpartition(".")[0])
        if not is_known(name) and not isinstance(parent, LookAlike):
            return None
        try:
            found = resolve_module(name)
        except MissingNameError as error:
            if isinstance(parent, LookAlike):
                raise ImportError(str(error), name=fullname) from error
            return None
        if not isinstance(found, types.ModuleType):
            return None
        return importlib.machinery.ModuleSpec(fullname, Loader(found))
