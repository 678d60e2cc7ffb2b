"""A save that training no longer waits for."""

import contextlib
import dataclasses
from collections.abc import Mapping

import numpy as np

from keras_tpu_estimator.files.checkpoints import saving
from keras_tpu_estimator.files.directory.retention import Retention
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats import checkpoint_format as formats
from keras_tpu_estimator.ground.hosts.errors import HostError
from keras_tpu_estimator.ground.hosts.host_exchange import HostExchange
from keras_tpu_estimator.runs.finite_values import FiniteValues
from keras_tpu_estimator.runs.shard_writers import BegunShards


@dataclasses.dataclass(frozen=True)
class BegunSave:
    """What each host has of a save, and what is left to do.

    Attributes:
        files: Its files.
        format_name: The format of its main file.
        whole: Copies of values by path; on the chief alone.
        shards: What lies over several cores.
        finite: Is shown trained values; knows the step.
        positions: A context that saves the position in the input first.
        retention: Which older checkpoints stay.
        others: Who says what to whom.
        is_chief: Whether this host writes the main file.
        patience: How many seconds more than others hosts may take.
    """

    files: SaveFiles
    format_name: str
    whole: Mapping[str, np.ndarray]
    shards: BegunShards
    finite: FiniteValues
    positions: contextlib.AbstractContextManager[None]
    retention: Retention
    others: HostExchange
    is_chief: bool
    patience: float

    def complete(self) -> None:
        """Writes what is left, together with the other hosts.

        Raises:
            NanLossDuringTrainingError: A trained value is not finite, so that
                nothing is left of the save.
            Exception: It could not be written; the same of all hosts.
        """
        # The chief may complete what others have written.
        in_doubt = () if self.is_chief else (HostError,)
        with (
            self.others.reported_errors("saving a checkpoint"),
            self.files.tidied_on_failure(*in_doubt),
        ):
            self.shards.finish()
            self._check_whole()
            with self.positions:
                self.others.barrier(more_patience_secs=self.patience)
                if self.is_chief:
                    self._write_main_file()
                self.others.barrier(more_patience_secs=self.patience)
            if self.shards.described:
                formats.trust(self.files.prefix)

    def _check_whole(self) -> None:
        # The chief has them, and all raise the same.
        found = self.others.from_chief(lambda: self.finite.first_not_finite(self.whole))
        self.finite.raise_if_any([found])

    def _write_main_file(self) -> None:
        saving.save_into(
            self.files,
            self.finite.step,
            {**self.whole, **self.shards.described},
            retention=self.retention,
            format_name=self.format_name,
        )
