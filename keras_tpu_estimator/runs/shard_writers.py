"""What lies over several cores, written by the hosts that have it.

It is written before training goes on: there is no second copy of it. All hosts
go on together, for who was first would wait for the devices of the others, and
take them for stuck.
"""

import abc
import dataclasses
from collections.abc import Mapping

from keras_tpu_estimator.engine.device.saving import ToSave
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats import checkpoint_format as formats
from keras_tpu_estimator.files.formats.hdf5.shard_files import ShardFiles
from keras_tpu_estimator.files.formats.hdf5.shards import InTree
from keras_tpu_estimator.files.formats.hdf5.shards import Sharded
from keras_tpu_estimator.files.formats.orbax import writer as orbax_writer
from keras_tpu_estimator.ground.hosts.host_exchange import HostExchange
from keras_tpu_estimator.runs.finite_values import FiniteValues


@dataclasses.dataclass(frozen=True)
class ShardWriter(abc.ABC):
    """Writes shards in one format.

    Attributes:
        host: The number of this host.
        others: Who says what to whom.
    """

    host: int
    others: HostExchange

    @abc.abstractmethod
    def write(
        self,
        files: SaveFiles,
        saved: ToSave,
        finite: FiniteValues,
        patience: float,
    ) -> Mapping[str, Sharded | InTree]:
        """Writes what this host has.

        Args:
            files: Those of the save.
            saved: What some of lies over several cores.
            finite: Is shown trained values.
            patience: How many seconds more than others hosts may take.

        Returns:
            What the main file is to say of it.

        Raises:
            NanLossDuringTrainingError: A trained value is not finite.
        """


class FileWriter(ShardWriter):
    """Each host writes a file of its own."""

    def write(
        self,
        files: SaveFiles,
        saved: ToSave,
        finite: FiniteValues,
        patience: float,
    ) -> Mapping[str, Sharded]:
        """Looks at values while it writes them, so as to fetch them once."""
        shards = ShardFiles(files, finite.watched(saved.sharded))
        seal = shards.write(self.host)
        written = shards.sharded(self.others.gather(seal, patience))
        finite.raise_if_any(self.others.gather(finite.not_finite))
        return written


class TreeWriter(ShardWriter):
    """Orbax writes into a folder of all hosts."""

    def write(
        self,
        files: SaveFiles,
        saved: ToSave,
        finite: FiniteValues,
        patience: float,
    ) -> Mapping[str, InTree]:
        """Looks at values before, for it does not see what Orbax fetches."""
        finite.look_at(saved.sharded, self.host)
        finite.raise_if_any(self.others.gather(finite.not_finite, patience))
        self.others.by_chief(lambda: orbax_writer.begin(files))
        written = orbax_writer.write_arrays(files, saved.tree, finite.step)
        self.others.barrier(patience)
        return written


# In TensorFlow's format nothing is in shards.
OF_FORMAT: Mapping[str, type[ShardWriter]] = {
    formats.HDF5: FileWriter,
    formats.ORBAX: TreeWriter,
}
