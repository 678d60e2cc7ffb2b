"""Variables that lie over several cores, on their way into a checkpoint.

Each host writes the parts that it has into a file of its own, one after the
other, so that it has none of them twice. The main file, which the chief writes
when all others are there, says where the parts are.
"""

import dataclasses
import os
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np

from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.hdf5 import encoding
from keras_tpu_estimator.files.formats.hdf5 import writer
from keras_tpu_estimator.files.formats.hdf5.shards import Shard
from keras_tpu_estimator.files.formats.hdf5.shards import Sharded
from keras_tpu_estimator.files.formats.reader import Stored
from keras_tpu_estimator.ground.base.index_ranges import IndexRanges
from keras_tpu_estimator.ground.storage import paths


@dataclasses.dataclass(frozen=True)
class ShardedVariable:
    """A variable whose parts lie on several cores.

    Attributes:
        shape: Its shape.
        dtype: The NumPy dtype that it is saved with.
        hosts: Its parts, and which host writes each.
        part: Gives one that this host writes.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    hosts: Mapping[IndexRanges, int]
    part: Callable[[IndexRanges], np.ndarray]


@dataclasses.dataclass(frozen=True)
class ShardFiles:
    """The files with parts of variables that belong to a checkpoint.

    All hosts know all of them.

    Attributes:
        saved: All files of the save.
        variables: The variables by path.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> from keras_tpu_estimator.files.checkpoints import saving
    >>> directory = tempfile.mkdtemp()
    >>> table = np.arange(8.0)
    >>> halves = {IndexRanges((0,), (4,)): 0, IndexRanges((4,), (8,)): 1}
    >>> saved = SaveFiles(os.path.join(directory, "model.ckpt-20"))
    >>> files = ShardFiles(
    ...     saved, {"table": ShardedVariable((8,), table.dtype, halves,
    ...                             lambda box: table[box.slices])})
    >>> seals = [files.write(host) for host in range(2)]
    >>> saving.save_into(
    ...     saved, 20, files.sharded(seals), retention=checkpoints.Retention())
    >>> checkpoints.read(saved.prefix)["table"]
    array([0., 1., 2., 3., 4., 5., 6., 7.])
    """

    saved: SaveFiles
    variables: Mapping[str, ShardedVariable]

    def write(self, host: int) -> int | None:
        """Writes the file of a host.

        Args:
            host: This one.

        Returns:
            What tells the file from others, for `sharded`. `None` if it has
            no parts to write.
        """
        own = dict(self._parts(host))
        if not own:
            return None
        described = {
            key: Stored(box.shape, self.variables[path].dtype)
            for key, (path, box) in own.items()
        }
        values = (
            (key, np.asarray(self.variables[path].part(box), order="C"))
            for key, (path, box) in own.items()
        )
        paths.make_directory(os.path.dirname(self.saved.prefix))
        return writer.write_file(
            self._file(host), described, values, self.saved.token
        )

    def sharded(self, seals: list[int | None]) -> dict[str, Sharded]:
        """What the main file is to say of the variables.

        Args:
            seals: What `write` has returned, by host.
        """
        found: dict[str, list[Shard]] = {path: [] for path in self.variables}
        for host in self._writers:
            parts = dict(self._parts(host))
            keys = encoding.keys(parts)
            name = os.path.basename(self._file(host))
            for part, (path, box) in parts.items():
                seal = seals[host]
                if seal is None:
                    raise RuntimeError(f"Host {host} should have written.")
                found[path].append(Shard(box, name, keys[part], seal))
        return {
            path: Sharded(each.shape, each.dtype, tuple(found[path]))
            for path, each in self.variables.items()
        }

    @property
    def _writers(self) -> list[int]:
        """The hosts that have parts to write."""
        return sorted(
            {h for each in self.variables.values() for h in each.hosts.values()}
        )

    def _file(self, host: int) -> str:
        writers = self._writers
        return self.saved.part(writers.index(host), len(writers))

    def _parts(
        self, host: int
    ) -> Iterator[tuple[str, tuple[str, IndexRanges]]]:
        """What they are called in the file of a host, and what they are."""
        for path, variable in sorted(self.variables.items()):
            for box, owner in sorted(variable.hosts.items()):
                if owner == host:
                    start = "_".join(map(str, box.start))
                    yield f"{path}/{start}", (path, box)
