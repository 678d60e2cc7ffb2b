"""Reader of checkpoints of TensorFlow 1 and 2, and of those in SavedModels."""

import contextlib
import glob
from collections.abc import Iterator, Sequence

import numpy as np

from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.transfers import local_copy, without_wildcards
from keras_tpu_estimator.files.directory.layouts import INDEX, data_files
from keras_tpu_estimator.files.formats.reader import (
    CheckpointReader,
    Stored,
    removed,
    unambiguous,
)

_NUMBER = "-?????-of-?????"

# Object-based checkpoints append this ending to the path of an object, and
# store a serialized graph of the objects beside the variables.
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def exists(prefix: str) -> bool:
    """Returns whether a file exists that may be a TensorFlow checkpoint.

    Args:
        prefix: A path without '.index'. TensorFlow's first format, used until
            2016,
            has a file of exactly that name, or several numbered files.

    Example:

    >>> exists("/nowhere/model.ckpt-20")
    False
    """
    if paths.is_file(prefix + INDEX) or paths.is_file(prefix):
        return True
    return bool(_numbers(prefix))


def suffixes(prefix: str) -> list[str]:
    """Returns the endings of a checkpoint's file names."""
    if paths.is_file(prefix + INDEX):
        data = data_files(prefix)
        return [INDEX, *(path.removeprefix(prefix) for path in data)]
    return _numbers(prefix) or [""]


def _numbers(prefix: str) -> list[str]:
    """Returns the endings of numbered files, such as '-00000-of-00002'."""
    found = paths.matching(glob.escape(prefix) + _NUMBER)
    return [path[-len(_NUMBER) :] for path in found]


class TensorFlowReader(CheckpointReader):
    """A reader of a checkpoint, which imports TensorFlow.

    In an object-based checkpoint (of `tf.train.Checkpoint`, or in a SavedModel)
    a variable is listed under the path of its object, without the ending
    '/.ATTRIBUTES/VARIABLE_VALUE'. Its full key is also a name, and so is its
    variable's own name if that is unique.

    Args:
        prefix: A path without '.index'.

    Raises:
        ValueError: The file is corrupt or not a checkpoint.
    """

    def __init__(self, prefix: str):
        import tensorflow as tf

        self._index = _index(prefix)
        # TensorFlow opens the data files only when it reads values.
        ends = suffixes(prefix)
        self._files = without_wildcards(local_copy(prefix, ends), ends)
        with _explained(prefix):
            # Unlike `tf.train.load_checkpoint`, this takes the prefix
            # literally where there is a directory of the same name.
            self._reader = tf.compat.v1.train.NewCheckpointReader(self._files.path)
            shapes = self._reader.get_variable_to_shape_map()
            dtypes = self._reader.get_variable_to_dtype_map()
            full_names = self._full_names()
        self._keys = {
            key.removesuffix(_VALUE): key for key in shapes if key != _OBJECT_GRAPH
        }
        listed = {
            name: Stored(tuple(shapes[key]), np.dtype(dtypes[key].as_numpy_dtype))
            for name, key in self._keys.items()
        }
        aliases = unambiguous(
            (full_name, key.removesuffix(_VALUE))
            for full_name, key in full_names
            if key in shapes
        )
        keys = {key: name for name, key in self._keys.items()}
        super().__init__(prefix, listed, {**aliases, **keys})

    def _full_names(self) -> list[tuple[str, str]]:
        """Returns pairs of a variable's name and key."""
        from tensorflow.core.protobuf import trackable_object_graph_pb2

        if not self._reader.has_tensor(_OBJECT_GRAPH):
            return []
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
            self._reader.get_tensor(_OBJECT_GRAPH)
        )
        return [
            (attribute.full_name, attribute.checkpoint_key)
            for node in graph.nodes
            for attribute in node.attributes
            if attribute.full_name
        ]

    def _read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        try:
            with _explained(self.path):
                return {name: self._read_one(self._keys[name]) for name in names}
        except ValueError as error:
            if _index(self.path) != self._index:
                raise removed(self.path) from error
            raise

    def _read_one(self, key: str) -> np.ndarray:
        value = self._reader.get_tensor(key)
        # A scalar string is `bytes`. NumPy would cut zeros at its end.
        is_text = isinstance(value, bytes)
        return np.asarray(value, object if is_text else None)


def _index(prefix: str) -> tuple[object, ...] | None:
    """Returns a key that changes when another checkpoint replaces this one."""
    try:
        return paths.version(prefix + INDEX)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _explained(prefix: str) -> Iterator[None]:
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        yield
    except tf.errors.UnimplementedError as error:
        raise ValueError(
            f"The checkpoint {prefix!r} is in TensorFlow's format of before "
            "2016, and one of its variables cannot be read "
            f"({error.message}). Restore it with tf.compat.v1.train.Saver, "
            "and save it again."
        ) from error
    except (tf.errors.OpError, IndexError, RuntimeError, DecodeError) as error:
        raise ValueError(
            f"The checkpoint {prefix!r} is truncated or corrupt, or was not "
            f"written by TensorFlow ({error}). Copy it again if it is a copy; "
            "otherwise use another one."
        ) from error
