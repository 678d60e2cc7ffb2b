"""Writes checkpoints as TensorFlow's `Saver` does, by names of variables."""

import contextlib
import os
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.checkpoints import checksum
from keras_tpu_estimator.checkpoints import commit
from keras_tpu_estimator.checkpoints import metagraph
from keras_tpu_estimator.checkpoints.location import INDEX
from keras_tpu_estimator.checkpoints.tensorflow_format import TensorFlowReader
from keras_tpu_estimator.checkpoints.tensorflow_format import suffixes
from keras_tpu_estimator.checkpoints.tensorflow_session import host_session
from keras_tpu_estimator.storage import paths

_DATA = ".data-00000-of-00001"
_META = ".meta"


def write(prefix: str, variables: Mapping[str, npt.ArrayLike]) -> None:
    """Writes variables into a bundle, whole or not at all.

    Its three files appear one after the other, the index last: without it,
    there is no checkpoint.

    Args:
        prefix: The path of the files to make or replace, without their ends.
        variables: Arrays of numbers or booleans by variable path.

    Raises:
        TypeError: A value is not an array of numbers.
        OSError: A file cannot be written.

    Example:

    >>> import os, tempfile
    >>> prefix = os.path.join(tempfile.mkdtemp(), "model.ckpt-3")
    >>> write(prefix, {"dense/bias": np.zeros(2)})
    >>> for name in sorted(os.listdir(os.path.dirname(prefix))):
    ...     print(name)
    model.ckpt-3.data-00000-of-00001
    model.ckpt-3.index
    model.ckpt-3.meta
    """
    arrays = {name: np.asarray(value) for name, value in variables.items()}
    for name, array in arrays.items():
        # bfloat16 and its like are of kind V.
        if array.dtype.kind not in "biufcV":
            raise TypeError(
                f"The value of {name!r} should be an array of numbers or "
                f"booleans. Received one of dtype {array.dtype}."
            )
    try:
        with (
            commit.replacing(prefix + INDEX) as index,
            commit.replacing(prefix + _DATA) as data,
            commit.replacing(prefix + _META) as meta,
        ):
            _write(data, arrays, {_DATA: data, INDEX: index})
            with open(meta, "wb") as file:
                file.write(metagraph.serialized(arrays))
    except BaseException:
        if not paths.is_file(prefix + INDEX):
            # Others alone, which nobody would remove.
            for end in (_DATA, _META):
                with contextlib.suppress(FileNotFoundError):
                    paths.remove(prefix + end)
        raise
    checksum.trust_as(_identity(prefix))


def is_intact(prefix: str) -> bool:
    """Whether all of a bundle can be read.

    Every byte is read, once for as long as size and times of the files stay.

    Args:
        prefix: The path of existing files, without their ends.

    Example:

    >>> import os, tempfile
    >>> prefix = os.path.join(tempfile.mkdtemp(), "model.ckpt-3")
    >>> write(prefix, {"dense/bias": np.zeros(2)})
    >>> is_intact(prefix)
    True
    """
    return checksum.checked_once(_identity(prefix), lambda: _is_intact(prefix))


def _is_intact(prefix: str) -> bool:
    try:
        reader = TensorFlowReader(prefix)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except ValueError:
        return False
    return True


def _identity(prefix: str) -> tuple[object, ...]:
    return tuple(paths.version(prefix + end) for end in suffixes(prefix))


def _write(
    prefix: str, arrays: Mapping[str, np.ndarray], files: Mapping[str, str]
) -> None:
    """Writes a bundle, and moves its files to where they belong by their ends.

    In a session: a program may have disabled eager execution.
    """
    import tensorflow as tf

    names = sorted(arrays)
    with tf.Graph().as_default():
        fed = [
            tf.compat.v1.placeholder(arrays[n].dtype, arrays[n].shape)
            for n in names
        ]
        op = tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=fed,
        )
        with host_session() as session:
            values = (arrays[name] for name in names)
            try:
                session.run(op, dict(zip(fed, values, strict=True)))
                for end, path in files.items():
                    os.replace(prefix + end, path)
            except tf.errors.OpError as error:
                raise OSError(
                    f"The checkpoint {prefix!r} cannot be written: "
                    f"{error.message}"
                ) from error
            finally:
                for end in files:
                    with contextlib.suppress(FileNotFoundError):
                        os.remove(prefix + end)
