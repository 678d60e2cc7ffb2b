"""What lies over several cores, written by the hosts that have it.

All hosts go on together, for who was first would wait for the devices of the
others, and take them for stuck.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping

from keras_tpu_estimator.engine.device.saving import ToSave
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.checkpoint_format import Shards
from keras_tpu_estimator.files.formats.hdf5.shards import InTree, Sharded
from keras_tpu_estimator.files.formats.hdf5.writer import ShardFiles
from keras_tpu_estimator.files.formats.orbax import writer as orbax_writer
from keras_tpu_estimator.ground.hosts.host_exchange import HostExchange
from keras_tpu_estimator.runs.finite_values import FiniteValues


def _are_there() -> None:
    """What is left to do where all hosts have written theirs."""


@dataclasses.dataclass(frozen=True)
class BegunShards:
    """Shards on their way to the disk.

    Attributes:
        described: What the main file is to say of them, by path.
        finish: Returns when all hosts have written theirs, on any thread.
            Defaults to at once.
    """

    described: Mapping[str, Sharded | InTree]
    finish: Callable[[], None] = _are_there


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
    def begin(
        self,
        files: SaveFiles,
        saved: ToSave,
        finite: FiniteValues,
        patience: float,
    ) -> BegunShards:
        """Does with what this host has what training has to wait for.

        Args:
            files: Those of the save.
            saved: What some of lies over several cores.
            finite: Is shown trained values.
            patience: How many seconds more than others hosts may take.

        Raises:
            NanLossDuringTrainingError: A trained value is not finite; also of
                `finish`.
        """


class FileWriter(ShardWriter):
    """Each host writes a file of its own before training goes on.

    So there is no second copy of what it has.
    """

    def begin(
        self,
        files: SaveFiles,
        saved: ToSave,
        finite: FiniteValues,
        patience: float,
    ) -> BegunShards:
        """Looks at values while it writes them, so as to fetch them once."""
        shards = ShardFiles(files, finite.watched(saved.sharded))
        seal = shards.write(self.host)
        described = shards.sharded(
            self.others.gather(seal, more_patience_secs=patience)
        )
        finite.raise_if_any(self.others.gather(finite.not_finite))
        return BegunShards(described)


class TreeWriter(ShardWriter):
    """Orbax writes into a folder of all hosts, while training goes on."""

    def begin(
        self,
        files: SaveFiles,
        saved: ToSave,
        finite: FiniteValues,
        patience: float,
    ) -> BegunShards:
        """Fetches all at once, for that is what Orbax does."""
        self.others.by_chief(lambda: orbax_writer.make_folder(files))
        wait = orbax_writer.begin_arrays(files, saved.tree, finite.step)
        # Training may use up what Orbax has not fetched whole.
        trained = {
            path: saved.tree[path].own_parts()
            for path in saved.tree.keys() & finite.trained
        }

        def finish() -> None:
            finite.look_at(trained)
            wait()
            finite.raise_if_any(
                self.others.gather(finite.not_finite, more_patience_secs=patience)
            )

        described = {path: each.in_tree for path, each in saved.tree.items()}
        return BegunShards(described, finish)


OF_KIND: Mapping[Shards, type[ShardWriter]] = {
    Shards.FILES: FileWriter,
    Shards.FOLDER: TreeWriter,
}
