"""The interface of a format in which checkpoints are written."""

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_tpu_estimator.files.directory.layouts import Layout
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.reader import CheckpointReader, FileContent
from keras_tpu_estimator.files.formats.shards import ShardWriter


class CheckpointFormat(abc.ABC):
    """A format in which checkpoints are written, for `register_format`.

    A subclass has all that the package must know of the format. Saving, resuming,
    retention and the commands `info` and `verify` only use these members.

    Attributes:
        layout: The names of its files. Files with other names are never
            deleted.
        shard_writer: The writer with which each process writes its shards of
            sharded variables. Defaults to None: the first process writes
            complete variables, and sharded ones that it cannot read are an
            error.

    Example:

    >>> import json
    >>> import keras_tpu_estimator as kte
    >>> class Json(kte.checkpoints.CheckpointFormat):
    ...     layout = kte.checkpoints.Layout(".json-values")
    ...     def write(self, files, variables, receipts):
    ...         values = {name: float(value) for name, value in variables.items()}
    ...         with files.create(self.layout.main(files.prefix)) as file:
    ...             file.write(json.dumps(values).encode() + b"\\n")
    ...     def read(self, prefix):
    ...         with open(self.layout.main(prefix), "rb") as file:
    ...             return kte.load_checkpoint(json.loads(file.readline()))
    ...     def contents(self, prefix):
    ...         path = self.layout.main(prefix)
    ...         def is_right():
    ...             return kte.checkpoints.SaveFiles.at(prefix) is not None
    ...         return [kte.checkpoints.FileContent((path,), is_right)]
    """

    layout: Layout
    shard_writer: ShardWriter | None = None

    @abc.abstractmethod
    def read(self, prefix: str) -> CheckpointReader:
        """Opens a checkpoint whose main file exists.

        Args:
            prefix: The path of the main file without its ending.

        Returns:
            A reader. `load_checkpoint` of a dict returns one for arrays in
            memory; a subclass of `CheckpointReader` reads only what is needed.

        Raises:
            ValueError: The checkpoint is corrupt.
        """

    @abc.abstractmethod
    def write(
        self,
        files: SaveFiles,
        variables: Mapping[str, Any],
        receipts: Sequence[Any],
    ) -> None:
        """Writes a checkpoint, or completes one whose shards are written.

        Only the first process calls it. The main file must appear last and complete.

        Args:
            files: The files of the save, into which shards are written.
            variables: Arrays by path, and descriptions of the variables that
                the `shard_writer` has written.
            receipts: The receipt of each process's `shard_writer`; empty if no
                shards are written.
        """

    @abc.abstractmethod
    def contents(self, prefix: str) -> Iterable[FileContent]:
        """Returns the expected content of a checkpoint's files, for verification.

        Args:
            prefix: The path of an existing main file without its ending.

        Returns:
            One record for each file, or for files that must be checked together.
            Several processes share the records.

        Raises:
            ValueError: The main file is corrupt.
        """

    def check_can_write(self, directory: str) -> None:
        """Checks that checkpoints can be written, before training begins.

        Args:
            directory: A path or URL, which may be missing.

        Raises:
            ValueError: The format does not support the directory.
            ImportError: The package for the format is not installed.
        """
        del directory  # Most formats support all of them.
