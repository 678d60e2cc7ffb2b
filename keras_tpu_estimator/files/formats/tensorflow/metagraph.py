"""The `.meta` file of a checkpoint in TensorFlow's format.

TensorFlow writes the graph of a session into it, which there is none of here.
This one has the variables, and what saves and restores them. Programs that
copy, rename and remove the files of a checkpoint expect three.
"""

import functools
import re
from collections.abc import Mapping

import numpy as np

_NOT_IN_NAMES = re.compile(r"^[^A-Za-z0-9.]|[^A-Za-z0-9_.\\/>-]")
_Kinds = tuple[tuple[str, np.dtype, tuple[int, ...]], ...]


def serialized(arrays: Mapping[str, np.ndarray]) -> bytes:
    """What the file has in it, for `tf.train.import_meta_graph`.

    Args:
        arrays: Arrays by the names of variables.

    Example:

    >>> import tensorflow as tf
    >>> made = tf.compat.v1.MetaGraphDef.FromString(
    ...     serialized({"dense/bias": np.zeros(2)}))
    >>> "variables" in made.collection_def
    True
    """
    # The same for each checkpoint of a run.
    return _made(
        tuple((name, each.dtype, each.shape) for name, each in arrays.items())
    )


@functools.lru_cache(maxsize=4)
def _made(kinds: _Kinds) -> bytes:
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        variables = {
            name: v1.Variable(
                lambda dtype=dtype, shape=shape: tf.zeros(shape, dtype),
                trainable=False,
                # Keras allows more in a name than TensorFlow.
                name=_NOT_IN_NAMES.sub("_", name).lstrip("_") or None,
                use_resource=True,
            )
            for name, dtype, shape in kinds
        }
        saver = v1.train.Saver(variables, allow_empty=True)
        made: bytes = saver.export_meta_graph().SerializeToString()
    return made
