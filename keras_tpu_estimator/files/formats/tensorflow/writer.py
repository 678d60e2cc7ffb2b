"""Writes checkpoints as TensorFlow's `Saver` does, by names of variables."""

import contextlib
import functools
import re
from collections.abc import Iterator
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.atomic.checksum import NO_TOKEN
from keras_tpu_estimator.files.atomic.checksum import SIZE
from keras_tpu_estimator.files.atomic.checksum import stamp
from keras_tpu_estimator.files.directory import save_names
from keras_tpu_estimator.files.directory.location import INDEX
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.directory.save_names import META
from keras_tpu_estimator.files.formats.intact import Content
from keras_tpu_estimator.files.formats.tensorflow.reader import TensorFlowReader
from keras_tpu_estimator.files.formats.tensorflow.reader import suffixes
from keras_tpu_estimator.ground.base.tensorflow_session import host_session
from keras_tpu_estimator.ground.storage import paths

if TYPE_CHECKING:
    import tensorflow as tf

# Field 1000 of a message, which no program reads, with what is to come.
_META_END = b"\xc2\x3e" + bytes([SIZE]) + stamp(NO_TOKEN)


def write(saved: SaveFiles, variables: Mapping[str, npt.ArrayLike]) -> None:
    """Writes variables into a bundle, whole or not at all.

    Its files appear one after the other, the index last: it says how many
    files have the data, and by that what they are called. What is written in
    place of another bundle has another number of them, so that each index
    finds its own. Those of the other one are left to who has called.

    Args:
        saved: The files of the save.
        variables: Arrays of numbers or booleans by variable path.

    Raises:
        TypeError: A value is not an array of numbers.
        OSError: A file cannot be written.

    Example:

    >>> import os, tempfile
    >>> prefix = os.path.join(tempfile.mkdtemp(), "model.ckpt-3")
    >>> write(SaveFiles(prefix), {"dense/bias": np.zeros(2)})
    >>> for name in sorted(os.listdir(os.path.dirname(prefix))):
    ...     print(name)
    model.ckpt-3.data-00000-of-00001
    model.ckpt-3.index
    model.ckpt-3.meta
    """
    prefix = saved.prefix
    arrays = {name: np.asarray(value) for name, value in variables.items()}
    for name, array in arrays.items():
        # bfloat16 and its like are of kind V.
        if array.dtype.kind not in "biufcV":
            raise TypeError(
                f"The value of {name!r} should be an array of numbers or "
                f"booleans. Received one of dtype {array.dtype}."
            )
    count = 2 if len(save_names.data_files(prefix)) == 1 else 1
    # Of the step alone, the data are the same as before.
    count = min(count, len(arrays))
    with commit.writing(prefix) as partial:
        _write(prefix, partial, arrays, count)
        for number in range(count):
            data = save_names.data_file(partial, number, count)
            with open(data, "ab") as file:
                file.write(stamp(saved.token))
            commit.publish(data, save_names.data_file(prefix, number, count))
        with _described(saved, partial, arrays):
            commit.publish(partial + INDEX, prefix + INDEX)


@contextlib.contextmanager
def _described(
    saved: SaveFiles, partial: str, arrays: Mapping[str, np.ndarray]
) -> Iterator[None]:
    """Puts beside an index what it is about; the block publishes the index.

    That file has one name. Where it would be beside the wrong index, it is away
    for a moment: TensorFlow can do without.
    """
    content = serialized(arrays) + _META_END
    path = saved.prefix + META
    is_there = paths.is_file(saved.prefix + INDEX)
    if is_there and _content(path) == content:
        yield
        return
    with open(partial + META, "wb") as file:
        file.write(content)
    if is_there:
        saved.remove_meta()
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


def contents(prefix: str) -> list[Content]:
    """What the files of a bundle should have in them, which all say together.

    Args:
        prefix: The path of existing files, without their ends.
    """
    files = tuple(prefix + end for end in suffixes(prefix))
    return [Content(files, functools.partial(_is_right, prefix))]


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
    """Writes a bundle under another name.

    In a session: a program may have disabled eager execution.

    Args:
        prefix: The name that it shall have.
        partial: That which it is to have for now.
        arrays: What is in it.
        count: How many files have the data.
    """
    import tensorflow as tf

    names = sorted(arrays)
    parts = [partial]
    if count > 1:
        parts = [f"{partial}.{number}" for number in range(count)]
    with tf.Graph().as_default():
        fed = {
            n: tf.compat.v1.placeholder(arrays[n].dtype, arrays[n].shape)
            for n in names
        }
        saves = []
        for number, part in enumerate(parts):
            own = names[number::count]
            saves.append(
                tf.raw_ops.SaveV2(
                    prefix=part,
                    tensor_names=own,
                    shape_and_slices=[""] * len(own),
                    tensors=[fed[n] for n in own],
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
    """The first line of an error, before a session put its graph around it."""
    first = error.__context__
    told = (first if isinstance(first, type(error)) else error).message
    return told.partition("\n")[0]


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
