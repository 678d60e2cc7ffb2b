"""The functions that open a checkpoint in any format and read from it."""

import os
from collections.abc import Iterable, Mapping

import numpy as np

from keras_tpu_estimator.base.common import registry as parts
from keras_tpu_estimator.base.common.shown import plain_name
from keras_tpu_estimator.base.common.types import CheckpointLike
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.files.directory import layouts, location
from keras_tpu_estimator.files.directory.location import latest_checkpoint
from keras_tpu_estimator.files.formats import registry
from keras_tpu_estimator.files.formats.reader import (
    GLOBAL_STEP,
    ArraysReader,
    CheckpointReader,
)

# The endings of checkpoints that are named by their file.
_FILES = (".weights.h5", ".keras", ".safetensors")
# The parts that read the files of other programs. TensorFlow's is the last, because
# the files of its first format may have any name.
_OTHERS = ("keras files", "safetensors files", "orbax files", "tensorflow files")


def load_checkpoint(
    ckpt_dir_or_file: CheckpointLike,
) -> CheckpointReader:
    """Opens a checkpoint for reading.

    Args:
        ckpt_dir_or_file: A prefix such as 'dir/model.ckpt-20' of a checkpoint
            of this package or of TensorFlow; a directory, for its latest
            checkpoint; a SavedModel; a '.weights.h5' or '.keras' file of Keras;
            a directory of Orbax, or of its manager; a '.safetensors' file, its
            index, or a Hugging Face model directory that contains one; or a
            dict of arrays, which may be nested.

    Returns:
        A reader of its variables. TensorFlow, Orbax and safetensors are
        imported only for their own files.

    Raises:
        ValueError: The checkpoint does not exist, or its file is corrupt.
        ImportError: Orbax or safetensors is needed but not installed.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> directory = tempfile.mkdtemp()
    >>> prefix = kte.checkpoints.save(directory, 20, {"dense/bias": [1.0, 2.0]})
    >>> kte.load_checkpoint(directory).get_tensor("dense/bias")
    array([1., 2.])

    Reference: `tf.train.load_checkpoint`.
    """
    if isinstance(ckpt_dir_or_file, Mapping):
        return ArraysReader(ckpt_dir_or_file)
    path = os.fsdecode(ckpt_dir_or_file)
    # Most paths are prefixes, for which this is the only access to the store.
    written = registry.format_at(path)
    if written is not None:
        return written.read(path)
    existing = _path_to_read(path)
    if existing is not None:
        prefix = location.prefix_at(existing)
        written = registry.format_at(prefix)
        if written is not None:
            return written.read(prefix)
        for name in _OTHERS:
            reader: CheckpointReader | None = parts.part(name).opened(existing)
            if reader is not None:
                return reader
    raise ValueError(f"{path!r} is not a checkpoint: {_what_is_wrong(path)}")


def list_variables(
    ckpt_dir_or_file: CheckpointLike,
) -> list[tuple[str, list[int]]]:
    """Lists the variables of a checkpoint.

    Args:
        ckpt_dir_or_file: As for `load_checkpoint`.

    Returns:
        Pairs of a name and a shape, sorted by name.

    Raises:
        ValueError: The checkpoint does not exist, or its file is corrupt.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> prefix = kte.checkpoints.save(
    ...     tempfile.mkdtemp(), 20, {"dense/bias": [1.0, 2.0]})
    >>> kte.list_variables(prefix)
    [('dense/bias', [2]), ('global_step', [])]

    Reference: `tf.train.list_variables`.
    """
    reader = load_checkpoint(ckpt_dir_or_file)
    return sorted(reader.get_variable_to_shape_map().items())


def load_variable(ckpt_dir_or_file: CheckpointLike, name: str) -> np.ndarray:
    """Reads a variable of a checkpoint.

    Args:
        ckpt_dir_or_file: As for `load_checkpoint`.
        name: Its name, which may end with ':0'.

    Returns:
        Its value.

    Raises:
        VariableNotFoundError: The variable does not exist. This is a
            `KeyError`.
        ValueError: The checkpoint does not exist, or its file is corrupt.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> prefix = kte.checkpoints.save(
    ...     tempfile.mkdtemp(), 20, {"dense/bias": [1.0, 2.0]})
    >>> kte.load_variable(prefix, "dense/bias")
    array([1., 2.])

    Reference: `tf.train.load_variable`.
    """
    reader = load_checkpoint(ckpt_dir_or_file)
    return reader.get_tensor(plain_name(name))


def step_of(ckpt_dir_or_file: CheckpointLike) -> int:
    """Reads the global step of a checkpoint.

    Args:
        ckpt_dir_or_file: As for `load_checkpoint`.

    Returns:
        The step that is stored in the file; the file's name is ignored.

    Raises:
        VariableNotFoundError: It has no 'global_step'.
        ValueError: The checkpoint does not exist, or its file is corrupt.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> checkpoints.step_of(checkpoints.save(tempfile.mkdtemp(), 20, {}))
    20
    """
    return int(load_variable(ckpt_dir_or_file, GLOBAL_STEP))


def read(
    ckpt_dir_or_file: CheckpointLike, names: Iterable[str] | None = None
) -> dict[str, np.ndarray]:
    """Reads variables of a checkpoint.

    Args:
        ckpt_dir_or_file: As for `load_checkpoint`.
        names: The variables to read. None, the default, means all.

    Returns:
        Their values by name, with the dtypes and shapes that were saved.

    Raises:
        VariableNotFoundError: The checkpoint lacks one of `names`.
        ValueError: The checkpoint does not exist, or its file is corrupt.

    Example:

    >>> import tempfile
    >>> import numpy as np
    >>> from keras_tpu_estimator import checkpoints
    >>> prefix = checkpoints.save(tempfile.mkdtemp(), 20, {"b": np.ones(2)})
    >>> checkpoints.read(prefix, ["b"])
    {'b': array([1., 1.])}
    """
    reader = load_checkpoint(ckpt_dir_or_file)
    everything = reader.get_variable_to_shape_map()
    return reader.get_tensors(everything if names is None else names)


def _path_to_read(path: str) -> str | None:
    """Returns the path to read, which may be in the given directory."""
    if not paths.is_directory(path):
        return path
    orbax, safetensors = map(parts.part, ("orbax files", "safetensors files"))
    if orbax.exists(path) or orbax.exists_legacy(path):
        return path
    for variables in ("variables/variables", "variables"):
        prefix = os.path.join(path, variables)
        if paths.is_file(layouts.TENSORFLOW.main(prefix)):
            return prefix
    return (
        latest_checkpoint(path)
        or safetensors.in_directory(path)
        or orbax.latest_step(path)
    )


def _what_is_wrong(path: str) -> str:
    if paths.is_directory(path):
        return (
            "the directory has neither a 'checkpoint' file that names one, nor "
            "the 'variables/variables.index' of a SavedModel, a "
            "'model.safetensors' or a checkpoint of Orbax. Pass the prefix of "
            f"a checkpoint. {location.alternatives(path, _FILES)}"
        )
    prefix = location.prefix_of(path)
    return (
        f"there is no file {layouts.HDF5.main(prefix)!r} of this package, no "
        f"{layouts.TENSORFLOW.main(prefix)!r} of TensorFlow, no directory, and no file "
        "of Keras or safetensors, whose name would end with '.weights.h5', "
        f"'.keras' or '.safetensors'. {location.alternatives(path, _FILES)}"
    )
