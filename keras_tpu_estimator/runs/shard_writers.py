"""Writers of sharded variables, and the check that trained values are finite.

Each process writes its shards. All processes continue together, because the first
one would otherwise wait for the devices of the others, and report them as stuck.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from keras_tpu_estimator.api.hooks.stopping import NanLossDuringTrainingError
from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.base.hosts.host_exchange import HostExchange
from keras_tpu_estimator.engine.device.saving import ToSave
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.checkpoint_format import Shards
from keras_tpu_estimator.files.formats.hdf5.encoding import InTree, Sharded
from keras_tpu_estimator.files.formats.hdf5.writer import ShardedVariable, ShardFiles
from keras_tpu_estimator.files.formats.orbax import writer as orbax_writer


class FiniteValues:
    """Checks that the trained values of a save are finite.

    Args:
        trained: The paths of the trained variables.
        step: The global step of the values.
    """

    def __init__(self, trained: set[str], step: int):
        self.step = step
        self.trained = trained
        self._not_finite: set[str] = set()

    @property
    def not_finite(self) -> str | None:
        """The first path of a value that is not finite, among the written shards."""
        return min(self._not_finite, default=None)

    def watched(
        self, variables: Mapping[str, ShardedVariable]
    ) -> dict[str, ShardedVariable]:
        """Returns variables whose shards are checked when they are written."""
        return {
            path: self._watched(path, each) if path in self.trained else each
            for path, each in variables.items()
        }

    def check(self, parts: Mapping[str, Iterable[np.ndarray]]) -> None:
        """Checks fetched shards of trained variables, by path."""
        for path in parts.keys() & self.trained:
            if not all(map(_is_finite, parts[path])):
                self._not_finite.add(path)

    def first_not_finite(self, values: Mapping[str, np.ndarray]) -> str | None:
        """Returns the first path of a replicated value that is not finite."""
        paths = sorted(values.keys() & self.trained)
        return next((p for p in paths if not _is_finite(values[p])), None)

    def raise_if_any(self, found: Iterable[str | None]) -> None:
        """Raises an error if some process has found a path.

        Raises:
            NanLossDuringTrainingError: A trained value is not finite.
        """
        path = next(filter(None, found), None)
        if path is None:
            return
        raise NanLossDuringTrainingError(
            f"The trained variable {path!r} must be finite after step "
            f"{self.step}, as the loss is. Received NaN or infinity, so that "
            "nothing was saved and the latest checkpoint is an earlier one. "
            "Lower the learning rate, clip the gradients, or find the "
            "derivative of a square root or a norm at 0: "
            "RunConfig(debug_nans=True) reports the operation."
        )

    def _watched(self, path: str, variable: ShardedVariable) -> ShardedVariable:
        def part(box: IndexRanges) -> np.ndarray:
            value = variable.part(box)
            if not _is_finite(value):
                self._not_finite.add(path)
            return value

        return dataclasses.replace(variable, part=part)


def _is_finite(value: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        # A finite sum, which is fast to compute, has only finite terms.
        return bool(np.isfinite(value.sum()) or np.isfinite(value).all())


def _do_nothing() -> None:
    """Finishes shards that are already written."""


@dataclasses.dataclass(frozen=True)
class BegunShards:
    """Shards that are being written.

    Attributes:
        described: Their descriptions in the main file, by path.
        finish: Returns when all processes have written their shards. Any thread
            may call it.
    """

    described: Mapping[str, Sharded | InTree]
    finish: Callable[[], None] = _do_nothing


@dataclasses.dataclass(frozen=True)
class ShardWriter(abc.ABC):
    """Writes shards in one format.

    Attributes:
        host: The number of this process.
        others: The exchange with the other processes.
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
        """Starts to write this process's shards, while training waits.

        Args:
            finite: Checks trained values.
            patience: The additional seconds that one process may take.

        Raises:
            NanLossDuringTrainingError: A trained value is not finite. `finish`
                may also raise it.
        """


class FileWriter(ShardWriter):
    """Writes a file for each process before training continues.

    The shards are not copied.
    """

    def begin(
        self,
        files: SaveFiles,
        saved: ToSave,
        finite: FiniteValues,
        patience: float,
    ) -> BegunShards:
        """Checks values while it writes them, so that they are fetched only once."""
        shards = ShardFiles(files, finite.watched(saved.sharded))
        seal = shards.write(self.host)
        described = shards.sharded(
            self.others.gather(seal, more_patience_secs=patience)
        )
        finite.raise_if_any(self.others.gather(finite.not_finite))
        return BegunShards(described)


class TreeWriter(ShardWriter):
    """Writes with Orbax into one folder while training continues."""

    def begin(
        self,
        files: SaveFiles,
        saved: ToSave,
        finite: FiniteValues,
        patience: float,
    ) -> BegunShards:
        """Fetches all shards at once, as Orbax does."""
        self.others.by_chief(lambda: orbax_writer.make_folder(files))
        wait = orbax_writer.begin_arrays(files, saved.tree, finite.step)
        # Training may donate arrays before Orbax has fetched all of them.
        trained = {
            path: saved.tree[path].own_parts()
            for path in saved.tree.keys() & finite.trained
        }

        def finish() -> None:
            finite.check(trained)
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
