"""What checkpoints that training continues from hold, of any format."""

from collections.abc import Iterable

import numpy as np

from keras_tpu_estimator.files.checkpoints import files
from keras_tpu_estimator.files.checkpoints import location
from keras_tpu_estimator.files.checkpoints import orbax_saves
from keras_tpu_estimator.files.checkpoints import own_format
from keras_tpu_estimator.files.checkpoints import tensorflow_format
from keras_tpu_estimator.files.checkpoints.reader import CheckpointReader
from keras_tpu_estimator.ground.base.plain_names import plain_name
from keras_tpu_estimator.ground.base.types import PathLike
from keras_tpu_estimator.ground.storage import paths as storage


def names(checkpoint_path: PathLike) -> list[str]:
    """Lists the variables of a checkpoint.

    Args:
        checkpoint_path: A prefix, a file, or a directory of checkpoints.

    Returns:
        Variable paths, sorted, 'global_step' among them.

    Raises:
        ValueError: There is no such checkpoint, or its file is damaged.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> names(checkpoints.save(tempfile.mkdtemp(), 20, {"bias": np.ones(2)}))
    ['bias', 'global_step']
    """
    prefix = location.resolve(checkpoint_path)
    if own_format.exists(prefix):
        return files.names(prefix)
    return list(_reader(prefix).get_variable_to_shape_map())


def read(
    checkpoint_path: PathLike,
    paths: Iterable[str] | None = None,
) -> dict[str, np.ndarray]:
    """Reads variables from a checkpoint.

    Args:
        checkpoint_path: A prefix, a file, or a directory of checkpoints.
        paths: The variables to read. None, the default, is all.

    Returns:
        Their values by path, with the dtypes and shapes that were saved.

    Raises:
        VariableNotFoundError: The checkpoint lacks one of `paths`.
        ValueError: There is no such checkpoint, or its file is damaged.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> prefix = checkpoints.save(tempfile.mkdtemp(), 20, {"b": np.ones(2)})
    >>> read(prefix, ["b"])
    {'b': array([1., 1.])}
    """
    prefix = location.resolve(checkpoint_path)
    if own_format.exists(prefix):
        return files.read(prefix, paths)
    reader = _reader(prefix)
    wanted = reader.get_variable_to_shape_map() if paths is None else paths
    return reader.get_tensors(wanted)


def value(checkpoint_path: PathLike, name: str) -> np.ndarray:
    """Reads one variable from a checkpoint.

    Args:
        checkpoint_path: A prefix, a file, or a directory of checkpoints.
        name: The path of the variable, which may end with ':0'.

    Returns:
        Its value.

    Raises:
        VariableNotFoundError: The checkpoint has no such variable; this is a
            `KeyError`.
        ValueError: There is no such checkpoint, or its file is damaged.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> prefix = checkpoints.save(tempfile.mkdtemp(), 20, {"b": np.ones(2)})
    >>> value(prefix, "b")
    array([1., 1.])
    """
    name = plain_name(name)
    return read(checkpoint_path, [name])[name]


def step_of(checkpoint_path: PathLike) -> int:
    """Reads the global step of a checkpoint.

    Args:
        checkpoint_path: A prefix, a file, or a directory of checkpoints.

    Returns:
        The step, as the file has it; its name is not looked at.

    Raises:
        VariableNotFoundError: The file has no 'global_step'.
        ValueError: There is no such checkpoint, or its file is damaged.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> step_of(checkpoints.save(tempfile.mkdtemp(), 20, {}))
    20
    """
    return int(value(checkpoint_path, files.GLOBAL_STEP))


def _reader(prefix: str) -> CheckpointReader:
    """A reader of a checkpoint that is not of HDF5."""
    if storage.is_file(prefix + location.INDEX):
        return tensorflow_format.TensorFlowReader(prefix)
    return orbax_saves.TreeReader(prefix)
