"""Writes checkpoints as trees of Orbax, which reads them without this package.

It writes the folder 'model.ckpt-20.orbax.0f0f0f0f'; the main file appears when
all hosts have written theirs.
"""

import dataclasses
import inspect
import os
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.hdf5.shards import InTree
from keras_tpu_estimator.files.formats.orbax.main_file import MainFile
from keras_tpu_estimator.files.formats.orbax.reader import needed
from keras_tpu_estimator.files.formats.reader import GLOBAL_STEP
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage.urls import is_url


@dataclasses.dataclass(frozen=True)
class TreeArray:
    """A variable on the devices, on its way into a tree.

    Attributes:
        value: The array, of which every host writes what it has.
        dtype: The NumPy dtype that it is saved with.
        rows: How many of its rows are the variable's. Defaults to `None`, for
            all: those that follow are zeros, which Orbax writes, too.
    """

    value: jax.Array
    dtype: np.dtype
    rows: int | None = None


def check_can_write(directory: str) -> None:
    """Checks that trees can be written.

    Args:
        directory: Where.

    Raises:
        ValueError: It is a URL.
        ImportError: Orbax is not installed, or one of before 0.12.
    """
    if is_url(directory):
        raise ValueError(
            "RunConfig(checkpoint_format='orbax') should be with a model_dir "
            f"of this machine or of a disk that it has. Received: "
            f"{directory!r}. Use 'hdf5', which is uploaded when it is whole."
        )
    with needed():
        import orbax.checkpoint as ocp

        handler = inspect.signature(ocp.PyTreeCheckpointHandler)
        if "use_compression" not in handler.parameters:
            raise ImportError("to write them takes Orbax 0.12")


def begin(saved: SaveFiles) -> None:
    """Makes the folder, before any host writes into it."""
    paths.make_directory(os.path.dirname(saved.prefix))
    saved.make_tree()


def write_arrays(
    saved: SaveFiles, arrays: Mapping[str, TreeArray], step: int
) -> dict[str, InTree]:
    """Writes what this host has of variables, before training goes on.

    Args:
        saved: The files of the save, whose folder is there.
        arrays: All variables by path, the same on each host.
        step: The global step.

    Returns:
        What `write` is to be given when all hosts have written.
    """
    import orbax.checkpoint as ocp

    handler = ocp.PyTreeCheckpointHandler(use_compression=False)
    tree = {path: _alias(each.value) for path, each in arrays.items()}
    args = {
        path: ocp.SaveArgs(dtype=each.dtype) for path, each in arrays.items()
    }
    _save(
        handler,
        saved,
        {**tree, GLOBAL_STEP: np.array(step, np.int64)},
        {**args, GLOBAL_STEP: ocp.SaveArgs()},
    )
    return {path: InTree(each.rows) for path, each in arrays.items()}


def write(
    saved: SaveFiles, variables: Mapping[str, npt.ArrayLike | InTree]
) -> None:
    """Writes a tree, whole or not at all, or completes that of several hosts.

    Args:
        saved: The files of the save.
        variables: Arrays of numbers or booleans by variable path; or, if some
            are in the folder already, which all of them are then.

    Raises:
        TypeError: A value is not an array of numbers.
        ValueError: Orbax cannot save such an array.
        OSError: The disk is full, say.

    Example:

    >>> import tempfile
    >>> prefix = os.path.join(tempfile.mkdtemp(), "model.ckpt-3")
    >>> write(SaveFiles(prefix, "0f0f0f0f"), {"dense/bias": np.zeros(2)})
    >>> for name in sorted(os.listdir(os.path.dirname(prefix))):
    ...     print(name)
    model.ckpt-3.orbax
    model.ckpt-3.orbax.0f0f0f0f
    """
    check_can_write(saved.prefix)
    import orbax.checkpoint as ocp

    rows = {
        path: each.rows
        for path, each in variables.items()
        if isinstance(each, InTree)
    }
    handler = ocp.PyTreeCheckpointHandler(
        # It takes as long as to write, memory, and a tenth off numbers.
        use_compression=False,
        multiprocessing_options=ocp.options.MultiprocessingOptions(
            # Nobody else writes into it.
            primary_host=0 if rows else None
        ),
    )
    if not rows:
        begin(saved)
        tree = {path: _array(path, v) for path, v in variables.items()}
        _save(handler, saved, tree, dict.fromkeys(tree, ocp.SaveArgs()))
    _told(saved, lambda: handler.finalize(_folder(saved)))
    cut = {path: count for path, count in rows.items() if count is not None}
    MainFile.write(saved, cut)


def _array(path: str, value: npt.ArrayLike | InTree) -> np.ndarray:
    array = np.asarray(value)
    # bfloat16 and its like are of kind V.
    if array.dtype.kind not in "biufcV":
        raise TypeError(
            f"The value of {path!r} should be an array of numbers or "
            f"booleans. Received one of dtype {array.dtype}."
        )
    return array


def _save(
    handler: Any,
    saved: SaveFiles,
    tree: Mapping[str, Any],
    save_args: Mapping[str, Any],
) -> None:
    import orbax.checkpoint as ocp

    empty = sorted(path for path, value in tree.items() if not value.size)
    if empty:
        raise ValueError(
            "Orbax saves no arrays without elements. Received: "
            f"{empty}. Use RunConfig(checkpoint_format='hdf5')."
        )
    args = ocp.args.PyTreeSave(item={**tree}, save_args={**save_args})
    _told(saved, lambda: handler.save(_folder(saved), args=args))


def _told(saved: SaveFiles, write_it: Callable[[], None]) -> None:
    """Writes; what TensorStore raises is not an error of the system."""
    try:
        write_it()
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise OSError(
            f"The checkpoint {saved.prefix!r} cannot be written by Orbax "
            f"({type(error).__name__}: {error})."
        ) from error


def _folder(saved: SaveFiles) -> Any:
    from etils import epath

    return epath.Path(os.path.abspath(saved.tree))


def _alias(value: jax.Array) -> jax.Array:
    """Another array of the same buffers.

    An array keeps what was once fetched of it, here until this one is gone.
    """
    parts = [
        jax.make_array_from_single_device_arrays(
            shard.data.shape, shard.data.sharding, [shard.data]
        )
        for shard in value.addressable_shards
    ]
    return jax.make_array_from_single_device_arrays(
        value.shape, value.sharding, parts
    )
