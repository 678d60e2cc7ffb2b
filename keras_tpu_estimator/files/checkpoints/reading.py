"""Opens a checkpoint, whatever wrote it."""

import difflib
import os
from collections.abc import Callable
from collections.abc import Mapping

import numpy as np

from keras_tpu_estimator.files.checkpoints import arrays_in_memory
from keras_tpu_estimator.files.checkpoints import finding
from keras_tpu_estimator.files.checkpoints import keras_format
from keras_tpu_estimator.files.checkpoints import location
from keras_tpu_estimator.files.checkpoints import orbax_format
from keras_tpu_estimator.files.checkpoints import orbax_legacy
from keras_tpu_estimator.files.checkpoints import orbax_saves
from keras_tpu_estimator.files.checkpoints import own_format
from keras_tpu_estimator.files.checkpoints import safetensors_format
from keras_tpu_estimator.files.checkpoints import tensorflow_format
from keras_tpu_estimator.files.checkpoints.reader import CheckpointReader
from keras_tpu_estimator.ground.base.plain_names import plain_name
from keras_tpu_estimator.ground.base.types import CheckpointLike
from keras_tpu_estimator.ground.storage import paths

_INDEX = location.INDEX


def _is_tree(path: str) -> bool:
    """Whether it is a tree of this package's, not about to be replaced."""
    prefix = path.removesuffix(location.TREE)
    return location.main_file(prefix) == prefix + location.TREE


# The first that knows a path reads it. TensorFlow's is the last, for the files
# of its first format may have any name.
_FORMATS: tuple[
    tuple[Callable[[str], bool], Callable[[str], CheckpointReader]], ...
] = (
    (keras_format.exists, keras_format.KerasReader),
    (safetensors_format.exists, safetensors_format.SafetensorsReader),
    (orbax_format.exists, orbax_format.OrbaxReader),
    (orbax_legacy.exists, orbax_legacy.LegacyReader),
    (own_format.exists, own_format.OwnReader),
    (_is_tree, orbax_saves.TreeReader),
    (tensorflow_format.exists, tensorflow_format.TensorFlowReader),
)


def load_checkpoint(
    ckpt_dir_or_file: CheckpointLike,
) -> CheckpointReader:
    """Opens a checkpoint for reading.

    Args:
        ckpt_dir_or_file: A prefix such as 'dir/model.ckpt-20' of a checkpoint
            of this package or of TensorFlow; a directory, whose latest one is
            meant; a SavedModel; a '.weights.h5' or '.keras' file of Keras; a
            directory of Orbax, or of its manager; a '.safetensors' file, its
            index, or a directory of Hugging Face's libraries that has one; or a
            dict of arrays, which may hold dicts.

    Returns:
        A reader of its variables. TensorFlow, Orbax and safetensors are
        imported only for their own files.

    Raises:
        ValueError: There is no such checkpoint, or its file is damaged.
        ImportError: Orbax or safetensors is needed, and not installed.

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
        return arrays_in_memory.ArraysReader(ckpt_dir_or_file)
    path = os.fsdecode(ckpt_dir_or_file)
    prefix = _prefix(path)
    for exists, reader in _FORMATS:
        if prefix is not None and exists(prefix):
            return reader(prefix)
    raise ValueError(f"{path!r} is no checkpoint: {_what_is_wrong(path)}")


def list_variables(
    ckpt_dir_or_file: CheckpointLike,
) -> list[tuple[str, list[int]]]:
    """Lists the variables of a checkpoint.

    Args:
        ckpt_dir_or_file: As for `load_checkpoint`.

    Returns:
        Pairs of a name and a shape, sorted by name.

    Raises:
        ValueError: There is no such checkpoint, or its file is damaged.

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
        VariableNotFoundError: There is no such variable; this is a `KeyError`.
        ValueError: There is no such checkpoint, or its file is damaged.

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


def _prefix(path: str) -> str | None:
    """What to read: a path, or what is found in it if it is a directory."""
    path = path.removesuffix(_INDEX)
    is_directory = paths.is_directory(path)
    if not is_directory or location.exists(path):
        return path
    if orbax_format.exists(path) or orbax_legacy.exists(path):
        return path
    for variables in ("variables/variables", "variables"):
        prefix = os.path.join(path, variables)
        if _has_index(prefix):
            return prefix
    return (
        finding.latest_checkpoint(path)
        or safetensors_format.in_directory(path)
        or orbax_format.latest_step(path)
    )


def _has_index(prefix: str) -> bool:
    return paths.is_file(prefix + _INDEX)


def _what_is_wrong(path: str) -> str:
    if paths.is_directory(path):
        return (
            "the directory has neither a 'checkpoint' file that names one, nor "
            "the 'variables/variables.index' of a SavedModel, a "
            "'model.safetensors' or a checkpoint of Orbax. Pass the prefix of "
            f"a checkpoint. {_near(path)}"
        )
    prefix = path.removesuffix(location.SUFFIX)
    return (
        f"there is no file {prefix + location.SUFFIX!r} of this package, no "
        f"{path + _INDEX!r} of TensorFlow, no directory, and no file of Keras "
        "or safetensors, whose name would end with '.weights.h5', '.keras' or "
        f"'.safetensors'. {_near(path)}"
    )


def _near(path: str) -> str:
    """Names the checkpoints in the directory of a path, the likest first."""
    directory, name = os.path.split(path)
    if paths.is_directory(path):
        directory, name = path, ""
    directory = directory or os.curdir
    if not paths.is_directory(directory):
        return f"The directory {directory!r} does not exist."
    shown = {_shown(file) for file in paths.names_in(directory)}
    there = sorted(one for one in shown if one is not None)
    near = difflib.get_close_matches(name, there, n=3, cutoff=0.0)
    if not near:
        return f"There is no checkpoint in {directory!r}."
    return f"Checkpoints in {directory!r}: {', '.join(near)}."


def _shown(file: str) -> str | None:
    """How a checkpoint of which this is a file should be asked for."""
    if file.endswith((".weights.h5", ".keras", ".safetensors")):
        return file
    for suffix in (location.SUFFIX, _INDEX, location.TREE):
        if file.endswith(suffix):
            return file.removesuffix(suffix)
    return None
