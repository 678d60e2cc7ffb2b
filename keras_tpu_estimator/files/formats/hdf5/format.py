"""The format "hdf5": one file, and one for the shards of each process."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from keras_tpu_estimator.files.directory import layouts
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.checkpoint_format import CheckpointFormat
from keras_tpu_estimator.files.formats.hdf5 import reader, writer
from keras_tpu_estimator.files.formats.hdf5.writer import ShardFiles
from keras_tpu_estimator.files.formats.reader import CheckpointReader, FileContent
from keras_tpu_estimator.files.formats.shards import (
    ShardedVariable,
    ShardValues,
    ShardWriter,
)


class Hdf5Shards(ShardWriter):
    """A writer of one file for each process, before training continues.

    The receipt is the seal of the file, or `None` if the process has no shards.
    """

    def begin(
        self,
        files: SaveFiles,
        step: int,
        values: Mapping[str, ShardValues],
        process: int,
    ) -> Callable[[], int | None]:
        """Writes the shards one by one, so that no two are in memory."""
        del step
        variables = {path: value.variable for path, value in values.items()}
        seal = ShardFiles(files, variables).write(values, process)
        return lambda: seal


class Hdf5Format(CheckpointFormat):
    """The format of this package, in which corruption is detected while reading."""

    layout = layouts.HDF5
    shard_writer = Hdf5Shards()

    def read(self, prefix: str) -> CheckpointReader:
        """Opens the main file; files with shards are opened when they are needed."""
        return reader.Hdf5Reader(prefix)

    def write(
        self,
        files: SaveFiles,
        variables: Mapping[str, Any],
        receipts: Sequence[Any],
    ) -> None:
        """Writes the main file, with the locations of shards."""
        sharded = {
            path: variable
            for path, variable in variables.items()
            if isinstance(variable, ShardedVariable)
        }
        located = ShardFiles(files, sharded).located(receipts)
        writer.write(files, {**variables, **located})

    def contents(self, prefix: str) -> Iterable[FileContent]:
        """Yields a record for each file."""
        return reader.contents(prefix)
