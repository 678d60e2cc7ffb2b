"""Writer of checkpoints as Orbax trees, readable without this package.

It writes the folder 'model.ckpt-20.orbax.0f0f0f0f'. The main file is written
when all hosts have written their arrays.
"""

import asyncio
import concurrent.futures
import inspect
import os
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.base.common.machine import Machine
from keras_tpu_estimator.base.mesh.transfers import alias
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.paths import is_url
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.orbax.reader import FOLDER, MainFile, needed
from keras_tpu_estimator.files.formats.reader import GLOBAL_STEP
from keras_tpu_estimator.files.formats.shards import ShardValues

_T = TypeVar("_T")

# On Windows the backslash separates folders.
_PATTERN = r"\[.*\]" if os.name == "nt" else r"\[.*\]|\\"


def check_can_write(directory: str) -> None:
    """Raises an error for a URL or a path with a pattern, or if Orbax is too old."""
    if is_url(directory):
        raise ValueError(
            "RunConfig(checkpoint_format='orbax') must have a `model_dir` on "
            f"this machine or on a mounted disk. Received: {directory!r}. Use "
            "'hdf5', which is uploaded when it is complete."
        )
    if re.search(_PATTERN, directory):
        raise ValueError(
            "RunConfig(checkpoint_format='orbax') must have a `model_dir` without "
            "[...] and backslashes, which Orbax reads as a pattern. Received: "
            f"{directory!r}. Rename it, or use 'hdf5'."
        )
    with needed():
        import orbax.checkpoint as ocp

        handler = inspect.signature(ocp.PyTreeCheckpointHandler)
        if "use_compression" not in handler.parameters:
            raise ImportError("writing them needs Orbax 0.12")


def make_folder(saved: SaveFiles) -> None:
    """Creates the folder before any host writes into it."""
    paths.make_directory(os.path.dirname(saved.prefix))
    saved.make_folder(FOLDER)


def begin_arrays(
    saved: SaveFiles, step: int, values: Mapping[str, ShardValues]
) -> Callable[[], None]:
    """Begins to write this host's shards, and returns a function that waits for them.

    All hosts must pass the same paths. When this returns, Orbax has fetched the shards.
    On a CPU Orbax may borrow arrays; training does not overwrite these, because XLA
    copies arrays in use. Any thread may wait. `finish` must be called when all hosts
    have waited. Orbax also writes padding.
    """
    import orbax.checkpoint as ocp

    arrays = {path: _separate(value.array) for path, value in values.items()}
    args = {
        path: ocp.SaveArgs(dtype=value.variable.dtype) for path, value in values.items()
    }
    wait = _begin(
        ocp.PyTreeCheckpointHandler(use_compression=False),
        saved,
        {**arrays, GLOBAL_STEP: np.array(step, np.int64)},
        {**args, GLOBAL_STEP: ocp.SaveArgs()},
    )
    # Training may donate arrays before Orbax has fetched all of them. These have the
    # copies that Orbax has made.
    checked = [
        (value.check, _local_shards(arrays[path]))
        for path, value in values.items()
        if value.is_checked
    ]

    def check_and_wait() -> None:
        for check, shards in checked:
            for shard in shards:
                check(shard)
        wait()

    return check_and_wait


def _separate(array: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
    """Returns an array that training neither donates nor changes."""
    return array.copy() if isinstance(array, np.ndarray) else alias(array)


def _local_shards(array: jax.Array | np.ndarray) -> list[np.ndarray]:
    """Returns this host's shards, fetched, without replicas."""
    if isinstance(array, np.ndarray):
        return [array]
    return [
        np.asarray(shard.data)
        for shard in array.addressable_shards
        if shard.replica_id == 0
    ]


def write(saved: SaveFiles, variables: Mapping[str, npt.ArrayLike]) -> None:
    """Writes a checkpoint of complete variables atomically."""
    import orbax.checkpoint as ocp

    make_folder(saved)
    tree = {path: _array(path, value) for path, value in variables.items()}
    _begin(_primary_handler(), saved, tree, dict.fromkeys(tree, ocp.SaveArgs()))()
    finish(saved, {})


def finish(saved: SaveFiles, rows: Mapping[str, int]) -> None:
    """Completes the folder that hosts have written; `rows` is as in `MainFile`."""
    _errors_converted(saved, lambda: _primary_handler().finalize(_folder(saved)))
    MainFile.write(saved, rows)


def _primary_handler() -> Any:
    import orbax.checkpoint as ocp

    return ocp.PyTreeCheckpointHandler(
        # Compression takes as long as writing, needs memory, and saves only a
        # tenth.
        use_compression=False,
        # This host completes the folder, and writes replicated variables.
        multiprocessing_options=ocp.options.MultiprocessingOptions(
            primary_host=Machine.from_jax().host
        ),
    )


def _array(path: str, value: npt.ArrayLike) -> np.ndarray:
    array = np.asarray(value)
    # bfloat16 and similar dtypes have kind V.
    if array.dtype.kind not in "biufcV":
        raise TypeError(
            f"The value of {path!r} must be an array of numbers or booleans. "
            f"Received one of dtype {array.dtype}."
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
            f"Orbax cannot save arrays without elements. Received: {empty}. "
            "Use RunConfig(checkpoint_format='hdf5')."
        )
    args = ocp.args.PyTreeSave(item={**tree}, save_args={**save_args})
    begun = _errors_converted(
        saved, lambda: _run(handler.async_save(_folder(saved), args=args))
    )

    def wait() -> None:
        errors = []
        # After an error the folder is removed, into which nothing may still write.
        for pending in begun or ():
            try:
                _errors_converted(saved, pending.result)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    return wait


def _run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine on another thread; a notebook's has its own loop."""

    def run() -> _T:
        # `asyncio.run` would inspect the tasks of all threads at its end.
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(coroutine)
        finally:
            loop.close()

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def _errors_converted(saved: SaveFiles, write: Callable[[], _T]) -> _T:
    """Calls a function, and converts TensorStore's errors to `OSError`."""
    try:
        return write()
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise OSError(
            f"Orbax could not write the checkpoint {saved.prefix!r} "
            f"({type(error).__name__}: {error})."
        ) from error


def _folder(saved: SaveFiles) -> Any:
    from etils import epath

    return epath.Path(os.path.abspath(saved.named(FOLDER)))
