"""Reader and writer of TensorFlow checkpoints, including those in SavedModels."""

import contextlib
import functools
import glob
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.base.common.tensorflow_session import host_session
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.transfers import local_copy, without_wildcards
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.atomic.checksum import NO_TOKEN, SIZE, stamp
from keras_tpu_estimator.files.directory import layouts, stale_files
from keras_tpu_estimator.files.directory.layouts import (
    INDEX,
    META,
    data_file,
    data_files,
)
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.checkpoint_format import CheckpointFormat
from keras_tpu_estimator.files.formats.reader import (
    GLOBAL_STEP,
    CheckpointReader,
    FileContent,
    StoredVariable,
    removed,
    unambiguous,
)

if TYPE_CHECKING:
    import tensorflow as tf


_NUMBER = "-?????-of-?????"

# Object-based checkpoints append this ending to the path of an object, and
# store a serialized graph of the objects beside the variables.
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def exists(prefix: str) -> bool:
    """Returns whether the prefix has a file that may be a TensorFlow checkpoint.

    TensorFlow's first format, used until 2016, has a file of exactly that name, or
    several numbered files.
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
    numbered = paths.matching(glob.escape(prefix) + _NUMBER)
    return [path[-len(_NUMBER) :] for path in numbered]


class TensorFlowReader(CheckpointReader):
    """A reader of a TensorFlow checkpoint, which imports TensorFlow.

    In an object-based checkpoint (of `tf.train.Checkpoint`, or in a SavedModel) a
    variable is listed under the path of its object, without the ending
    '/.ATTRIBUTES/VARIABLE_VALUE'. Its full key is also a name, and so is its variable's
    own name if that is unique. A corrupt file raises `ValueError`.
    """

    def __init__(self, prefix: str):
        import tensorflow as tf

        self._index = _index(prefix)
        # TensorFlow opens the data files only when it reads values.
        ends = suffixes(prefix)
        self._files = without_wildcards(local_copy(prefix, ends), ends)
        with _explained(prefix):
            # Unlike `tf.train.load_checkpoint`, this takes the prefix literally if
            # a directory has the same name.
            self._reader = tf.compat.v1.train.NewCheckpointReader(self._files.path)
            shapes = self._reader.get_variable_to_shape_map()
            dtypes = self._reader.get_variable_to_dtype_map()
            full_names = self._full_names()
        self._keys = {
            key.removesuffix(VALUE): key for key in shapes if key != _OBJECT_GRAPH
        }
        listed = {
            name: StoredVariable(
                tuple(shapes[key]), np.dtype(dtypes[key].as_numpy_dtype)
            )
            for name, key in self._keys.items()
        }
        aliases = unambiguous(
            (full_name, key.removesuffix(VALUE))
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


# Field 1000 of a message, which no program reads; its value follows.
_META_END = b"\xc2\x3e" + bytes([SIZE]) + stamp(NO_TOKEN)


def write(saved: SaveFiles, variables: Mapping[str, npt.ArrayLike]) -> None:
    """Writes a TensorFlow checkpoint atomically.

    Its files are published one after the other, the index last. The index contains the
    number of data files, which is part of their names. A checkpoint that replaces
    another one has another number of data files, so that each index refers to its own.
    The caller removes the files of the previous checkpoint.
    """
    prefix = saved.prefix
    arrays = {name: np.asarray(value) for name, value in variables.items()}
    for name, array in arrays.items():
        # bfloat16 and similar dtypes have kind V.
        if array.dtype.kind not in "biufcV":
            raise TypeError(
                f"The value of {name!r} must be an array of numbers or "
                f"booleans. Received one of dtype {array.dtype}."
            )
    tensors = _with_objects(arrays, saved.object_graph)
    count = 2 if len(data_files(prefix)) == 1 else 1
    # A checkpoint of only the step has a single data file.
    count = min(count, len(tensors))
    with commit.writing(prefix) as partial:
        _write(prefix, partial, tensors, count)
        for number in range(count):
            data = data_file(partial, number, count)
            with open(data, "ab") as file:
                file.write(stamp(saved.token))
            commit.publish(data, data_file(prefix, number, count))
        with _described(saved, partial, arrays):
            commit.publish(partial + INDEX, prefix + INDEX)


def _with_objects(
    arrays: Mapping[str, np.ndarray], object_graph: bytes | None
) -> Mapping[str, np.ndarray]:
    """Returns the tensors of an object-based checkpoint if there are objects."""
    if object_graph is None:
        return arrays
    # An object graph can refer only to keys with this ending.
    tensors = {name + VALUE: array for name, array in arrays.items()}
    return {**tensors, _OBJECT_GRAPH: np.array(object_graph, object)}


@contextlib.contextmanager
def _described(
    saved: SaveFiles, partial: str, arrays: Mapping[str, np.ndarray]
) -> Iterator[None]:
    """Publishes the `.meta` file; the block publishes the index.

    The `.meta` file has a fixed name. It is removed for a moment if it would otherwise
    be beside the wrong index; TensorFlow does not need it.
    """
    content = serialized(arrays, saved.collections) + _META_END
    path = saved.prefix + META
    is_there = paths.is_file(saved.prefix + INDEX)
    if is_there and _content(path) == content:
        yield
        return
    with open(partial + META, "wb") as file:
        file.write(content)
    if is_there:
        stale_files.remove_files([path])
        yield
        commit.publish(partial + META, path)
    else:
        commit.publish(partial + META, path)
        yield


def _content(path: str) -> bytes | None:
    try:
        with paths.opened(path) as file:
            return file.read()
    except FileNotFoundError:
        return None


class TensorFlowFormat(CheckpointFormat):
    """The files of TensorFlow's `Saver`; one process writes complete variables."""

    layout = layouts.TENSORFLOW

    def read(self, prefix: str) -> CheckpointReader:
        """Opens a checkpoint with TensorFlow."""
        return TensorFlowReader(prefix)

    def write(
        self,
        files: SaveFiles,
        variables: Mapping[str, Any],
        receipts: Sequence[Any],
    ) -> None:
        """Writes all variables."""
        del receipts
        write(files, variables)

    def contents(self, prefix: str) -> list[FileContent]:
        """Returns one record for all files."""
        return contents(prefix)


def contents(prefix: str) -> list[FileContent]:
    """Returns the expected content of the files, checked together."""
    files = tuple(prefix + end for end in suffixes(prefix))
    return [FileContent(files, functools.partial(_is_right, prefix))]


def _is_right(prefix: str) -> bool:
    try:
        reader = TensorFlowReader(prefix)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except ValueError:
        return False
    return True


def _write(
    prefix: str, partial: str, arrays: Mapping[str, np.ndarray], count: int
) -> None:
    """Writes `count` data files and an index under temporary names.

    It uses a session, because a script may have disabled eager execution.
    """
    import tensorflow as tf

    names = sorted(arrays)
    parts = [partial]
    if count > 1:
        parts = [f"{partial}.{number}" for number in range(count)]
    with tf.Graph().as_default():
        dtypes = {
            n: tf.string if arrays[n].dtype.kind == "O" else arrays[n].dtype
            for n in names
        }
        fed = {n: tf.compat.v1.placeholder(dtypes[n], arrays[n].shape) for n in names}
        saves = []
        for number, part in enumerate(parts):
            part_names = names[number::count]
            saves.append(
                tf.raw_ops.SaveV2(
                    prefix=part,
                    tensor_names=part_names,
                    shape_and_slices=[""] * len(part_names),
                    tensors=[fed[n] for n in part_names],
                )
            )
        with tf.control_dependencies(saves):
            op = tf.no_op()
            if count > 1:
                op = tf.raw_ops.MergeV2Checkpoints(
                    checkpoint_prefixes=parts, destination_prefix=partial
                )
        try:
            with host_session() as session:
                session.run(op, {fed[n]: arrays[n] for n in names})
        except tf.errors.OpError as error:
            raise OSError(
                f"The checkpoint {prefix!r} cannot be written: "
                f"{_what_the_system_said(error)}"
            ) from error


def _what_the_system_said(error: "tf.errors.OpError") -> str:
    """Returns the first line of an error, without the session's description."""
    first = error.__context__
    message = (first if isinstance(first, type(error)) else error).message
    return message.partition("\n")[0]


_NOT_IN_NAMES = re.compile(r"^[^A-Za-z0-9.]|[^A-Za-z0-9_.\\/>-]")
_Kinds = tuple[tuple[str, np.dtype, tuple[int, ...]], ...]
_Collections = tuple[tuple[str, tuple[str, ...]], ...]


def serialized(
    arrays: Mapping[str, np.ndarray], collections: Mapping[str, Collection[str]]
) -> bytes:
    """Returns the content of a `.meta` file, for `tf.train.import_meta_graph`."""
    # The content is the same for each checkpoint of a run.
    return _serialized(
        tuple((name, array.dtype, array.shape) for name, array in arrays.items()),
        tuple((key, tuple(names)) for key, names in collections.items()),
    )


@functools.lru_cache(maxsize=4)
def _serialized(kinds: _Kinds, collections: _Collections) -> bytes:
    """Serializes a graph of variables, in collections as TensorFlow's graph had them.

    Programs read variables from the collections, or by the name of a tensor, such as
    'dense/kernel:0'. This tensor is the value only of a reference variable.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    names = {name for name, _, _ in kinds}
    members = {"global_step": (GLOBAL_STEP,), **dict(collections)}
    trained = {*members.get(v1.GraphKeys.TRAINABLE_VARIABLES, ())}
    with tf.Graph().as_default() as graph:
        variables = {
            name: v1.Variable(
                lambda dtype=dtype, shape=shape: tf.zeros(shape, dtype),
                trainable=name in trained,
                # Keras allows more characters in a name than TensorFlow.
                name=_NOT_IN_NAMES.sub("_", name).lstrip("_") or None,
                # TensorFlow has no reference variables of 8-bit floats and int4.
                use_resource=dtype.itemsize == 1 and dtype.kind not in "biu",
            )
            for name, dtype, shape in kinds
        }
        for key, members_of_key in members.items():
            if key != v1.GraphKeys.TRAINABLE_VARIABLES:
                for name in members_of_key:
                    if name in names:
                        graph.add_to_collection(key, variables[name])
        saver = v1.train.Saver(variables, allow_empty=True)
        graph.add_to_collection(v1.GraphKeys.SAVERS, saver)
        serialized_graph: bytes = saver.export_meta_graph().SerializeToString()
    return serialized_graph


def opened(prefix: str) -> TensorFlowReader | None:
    """Returns a reader if the files at a prefix have this format."""
    return TensorFlowReader(prefix) if exists(prefix) else None
