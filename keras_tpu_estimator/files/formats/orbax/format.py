"""The format "orbax": a folder that Orbax writes, and a file with its checksums."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from keras_tpu_estimator.files.directory import layouts
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.checkpoint_format import CheckpointFormat
from keras_tpu_estimator.files.formats.orbax import reader, writer
from keras_tpu_estimator.files.formats.reader import CheckpointReader, FileContent
from keras_tpu_estimator.files.formats.shards import (
    ShardValues,
    ShardWriter,
)


class OrbaxShards(ShardWriter):
    """A writer with Orbax into one folder, while training continues.

    The receipt has the number of rows of each variable that is padded.
    """

    takes_replicated = True

    def prepare(self, files: SaveFiles) -> None:
        """Creates the folder before any process writes into it."""
        writer.make_folder(files)

    def begin(
        self,
        files: SaveFiles,
        step: int,
        values: Mapping[str, ShardValues],
        process: int,
    ) -> Callable[[], dict[str, int]]:
        """Fetches all shards at once, as Orbax does."""
        del process  # Orbax asks JAX.
        rows = {
            path: value.variable.shape[0]
            for path, value in values.items()
            if value.variable.shape != value.array.shape
        }
        wait = writer.begin_arrays(files, step, values)

        def finish() -> dict[str, int]:
            wait()
            return rows

        return finish


class OrbaxFormat(CheckpointFormat):
    """Orbax trees, readable without this package, with checksums beside them."""

    layout = layouts.ORBAX
    shard_writer = OrbaxShards()

    def read(self, prefix: str) -> CheckpointReader:
        """Reads all files once, because Orbax does not detect corruption."""
        return reader.TreeReader(prefix)

    def write(
        self,
        files: SaveFiles,
        variables: Mapping[str, Any],
        receipts: Sequence[Any],
    ) -> None:
        """Writes all arrays, or completes the folder of several processes."""
        if receipts:
            writer.finish(files, receipts[0])
        else:
            writer.write(files, variables)

    def contents(self, prefix: str) -> Iterable[FileContent]:
        """Returns a record for each file in the folder."""
        return reader.contents(prefix)

    def check_can_write(self, directory: str) -> None:
        """Raises an error for URLs and patterns, or if Orbax is too old."""
        writer.check_can_write(directory)
