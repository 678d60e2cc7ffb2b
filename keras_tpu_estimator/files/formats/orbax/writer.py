"""Writes checkpoints as trees of Orbax, which reads them without this package.

It writes the folder 'model.ckpt-20.orbax.0f0f0f0f'; the main file appears when
all hosts have written theirs.
"""

import asyncio
import concurrent.futures
import dataclasses
import inspect
import os
from collections.abc import Callable
from collections.abc import Coroutine
from collections.abc import Mapping
from typing import Any
from typing import Self
from typing import TypeVar

import jax
import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.hdf5.shards import InTree
from keras_tpu_estimator.files.formats.orbax.main_file import MainFile
from keras_tpu_estimator.files.formats.orbax.reader import needed
from keras_tpu_estimator.files.formats.reader import GLOBAL_STEP
from keras_tpu_estimator.ground.base.machine import Machine
from keras_tpu_estimator.ground.mesh.aliases import alias
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage.urls import is_url

_T = TypeVar("_T")


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

    @classmethod
    def of(
        cls, value: jax.Array, dtype: np.dtype, rows: int | None = None
    ) -> Self:
        """One that forgets with itself what is fetched of the array."""
        return cls(alias(value), dtype, rows)

    @property
    def in_tree(self) -> InTree:
        """What the main file is to say of it."""
        return InTree(self.rows)

    def own_parts(self) -> list[np.ndarray]:
        """What this host has, of equal parts only one, fetched."""
        return [
            np.asarray(shard.data)
            for shard in self.value.addressable_shards
            if shard.replica_id == 0
        ]


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


def make_folder(saved: SaveFiles) -> None:
    """Makes the folder, before any host writes into it."""
    paths.make_directory(os.path.dirname(saved.prefix))
    saved.make_tree()


def begin_arrays(
    saved: SaveFiles, arrays: Mapping[str, TreeArray], step: int
) -> Callable[[], None]:
    """Begins to write what this host has of variables.

    Orbax has fetched it on return. What a CPU lends it is not used up by
    training, for XLA copies what it may not overwrite.

    Args:
        saved: The files of the save, whose folder is there.
        arrays: All variables by path, the same on each host.
        step: The global step.

    Returns:
        What waits until it is written, on any thread. When all hosts have
        waited, `write` may be called.

    Raises:
        ValueError: Orbax cannot save such an array.
        OSError: The disk is full, say. Also when waiting.
    """
    import orbax.checkpoint as ocp

    tree = {path: each.value for path, each in arrays.items()}
    args = {
        path: ocp.SaveArgs(dtype=each.dtype) for path, each in arrays.items()
    }
    return _begin(
        ocp.PyTreeCheckpointHandler(use_compression=False),
        saved,
        {**tree, GLOBAL_STEP: np.array(step, np.int64)},
        {**args, GLOBAL_STEP: ocp.SaveArgs()},
    )


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
    import orbax.checkpoint as ocp

    rows = {
        path: each.rows
        for path, each in variables.items()
        if isinstance(each, InTree)
    }
    handler = ocp.PyTreeCheckpointHandler(
        # It takes as long as to write, memory, and a tenth off numbers.
        use_compression=False,
        # This host completes the folder, and of whole variables writes it.
        multiprocessing_options=ocp.options.MultiprocessingOptions(
            primary_host=Machine.here().host
        ),
    )
    if not rows:
        make_folder(saved)
        tree = {path: _array(path, v) for path, v in variables.items()}
        _begin(handler, saved, tree, dict.fromkeys(tree, ocp.SaveArgs()))()
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


def _begin(
    handler: Any,
    saved: SaveFiles,
    tree: Mapping[str, Any],
    save_args: Mapping[str, Any],
) -> Callable[[], None]:
    import orbax.checkpoint as ocp

    empty = sorted(path for path, value in tree.items() if not value.size)
    if empty:
        raise ValueError(
            "Orbax saves no arrays without elements. Received: "
            f"{empty}. Use RunConfig(checkpoint_format='hdf5')."
        )
    args = ocp.args.PyTreeSave(item={**tree}, save_args={**save_args})
    begun = _told(
        saved, lambda: _run(handler.async_save(_folder(saved), args=args))
    )

    def wait() -> None:
        for each in begun or ():
            _told(saved, each.result)

    return wait


def _run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Runs it on another thread, for in a notebook this one has a loop."""

    def run() -> _T:
        # `asyncio.run` ends with a look at the tasks of all threads.
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(coroutine)
        finally:
            loop.close()

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def _told(saved: SaveFiles, write_it: Callable[[], _T]) -> _T:
    """Writes; what TensorStore raises is not an error of the system."""
    try:
        return write_it()
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
