"""The checkpoints of one call of `train`, written while it continues.

Each process writes its shards with the `ShardWriter` of the format, and checks that
trained values are finite. All processes continue together.
"""

import contextlib
import dataclasses
import functools
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from keras_tpu_estimator.api.hooks.stopping import NanLossDuringTrainingError
from keras_tpu_estimator.base.common import ledger
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.hosts.failures import HostError
from keras_tpu_estimator.base.hosts.host_exchange import HostExchange
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.engine.device.run_state import Source, Version
from keras_tpu_estimator.engine.program.additions import (
    NO_ADDITIONS,
    StepAdditions,
)
from keras_tpu_estimator.files.atomic.checksum import new_token
from keras_tpu_estimator.files.checkpoints import saving
from keras_tpu_estimator.files.directory.location import Writer, name_for
from keras_tpu_estimator.files.directory.retention import Retention
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats import registry as formats
from keras_tpu_estimator.files.formats.shards import (
    ShardedVariable,
    ShardValues,
    ShardWriter,
)
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.loop_state import LoopState
from keras_tpu_estimator.runs.position_saver import PositionSaver


class FiniteValues:
    """A check that the trained variables of a save are finite."""

    def __init__(self, trained: set[str], step: int):
        self.step = step
        self.trained = trained
        self._not_finite: set[str] = set()

    @property
    def not_finite(self) -> str | None:
        """The first path of a value that is not finite, among the written shards."""
        return min(self._not_finite, default=None)

    def checked(self, values: Mapping[str, ShardValues]) -> dict[str, ShardValues]:
        """Returns values whose trained shards are checked when they are written."""
        return {
            path: dataclasses.replace(value, check=functools.partial(self._check, path))
            if path in self.trained
            else value
            for path, value in values.items()
        }

    def first_not_finite(self, values: Mapping[str, np.ndarray]) -> str | None:
        """Returns the first path of a replicated value that is not finite."""
        paths = sorted(values.keys() & self.trained)
        return next((p for p in paths if not _is_finite(values[p])), None)

    def raise_if_any(self, paths: Iterable[str | None]) -> None:
        """Raises `NanLossDuringTrainingError` if some process has found a path."""
        path = next(filter(None, paths), None)
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

    def _check(self, path: str, shard: np.ndarray) -> None:
        if not _is_finite(shard):
            self._not_finite.add(path)


def _is_finite(value: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        # A finite sum, which is fast to compute, has only finite terms.
        return bool(np.isfinite(value.sum()) or np.isfinite(value).all())


@dataclasses.dataclass(frozen=True)
class BegunShards:
    """Shards that all processes are writing, with the descriptions of the variables.

    `finish` returns this process's receipt when its shards are written. Any thread may
    call it.
    """

    variables: Mapping[str, ShardedVariable]
    finish: Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class BegunSave:
    """A save that training no longer waits for.

    `unsharded` has copies of values, only on the chief, which also writes the main
    file. `shards` is `None` if no process writes shards. `positions` is a context that
    first saves the position in the input. One process may take `patience` more seconds.
    """

    files: SaveFiles
    format_name: str
    unsharded: Mapping[str, np.ndarray]
    shards: BegunShards | None
    finite: FiniteValues
    positions: contextlib.AbstractContextManager[None]
    retention: Retention
    exchange: HostExchange
    is_chief: bool
    patience: float

    def complete(self) -> None:
        """Writes the rest with the other processes, which all raise the same error."""
        # The chief may complete the save after another process fails.
        in_doubt = () if self.is_chief else (HostError,)
        with (
            self.exchange.reported_errors("saving a checkpoint"),
            self.files.tidied_on_failure(*in_doubt),
        ):
            receipts = self._finish_shards()
            self._check_whole()
            with self.positions:
                self.exchange.barrier(more_patience_secs=self.patience)
                if self.is_chief:
                    self._write_main_file(receipts)
                self.exchange.barrier(more_patience_secs=self.patience)
            if self.shards is not None:
                formats.trust(self.files.prefix)

    def _finish_shards(self) -> Sequence[Any]:
        """Waits until all processes have written their shards; returns the receipts."""
        if self.shards is None:
            return ()
        receipt = self.shards.finish()
        answers = self.exchange.gather(
            [receipt, self.finite.not_finite], more_patience_secs=self.patience
        )
        receipts, not_finite = zip(*answers, strict=True)
        self.finite.raise_if_any(not_finite)
        return receipts

    def _check_whole(self) -> None:
        # The chief has the values, and all processes raise the same error.
        not_finite = self.exchange.from_chief(
            lambda: self.finite.first_not_finite(self.unsharded)
        )
        self.finite.raise_if_any([not_finite])

    def _write_main_file(self, receipts: Sequence[Any]) -> None:
        sharded = {} if self.shards is None else self.shards.variables
        saving.save_into(
            self.files,
            self.finite.step,
            {**self.unsharded, **sharded},
            retention=self.retention,
            format_name=self.format_name,
            receipts=receipts,
        )


_SLOW_BYTES_PER_SEC = 10**7

_logger = logging.getLogger("keras_tpu_estimator")


class Saver:
    """The writer of a training loop's checkpoints, which records the last ones.

    Checkpoints are written in the background, one at a time, from copies of the values.
    If the format allows, each process writes its shards. The end of the `with` block
    waits for the last checkpoint.
    """

    def __init__(
        self,
        context: EstimatorContext,
        progress: LoopState,
        positions: PositionSaver,
        additions: StepAdditions = NO_ADDITIONS,
    ):
        self._additions = additions
        self._positions = positions
        self._retention = additions.retention or Retention(
            context.config.keep_checkpoint_max,
            context.config.keep_checkpoint_every_n_hours or math.inf,
        )
        self._hosts = context.hosts
        self._exchange = context.hosts.exchange("the checkpoint")
        self._model_dir = context.model_dir
        self._format = context.checkpoint_format
        formats.check_can_write(self._format, os.fsdecode(context.model_dir))
        self._shard_writer = formats.named(self._format).shard_writer
        self._runtime = context.runtime
        self._loop_state = progress
        # Following links after each run would take time.
        self._real_path: Callable[[str], str] = functools.cache(paths.canonical)
        self._writer = Writer()
        # The version of the values in the last checkpoint of each directory,
        # and in the one that is being written.
        self._written: dict[str, Version] = {}
        self._writing: dict[str, Version] = {}
        if progress.values.checkpoint is not None:
            self._written[self._own_key] = progress.values.version

    def saved_step(self, directory: PathLike) -> int | None:
        """Returns the last saved step; `None` if user code has changed values since."""
        if self._writing and not self._writer.is_busy:
            self.wait()
        last = (self._written | self._writing).get(self._key(directory))
        if last is None or last.edits != self._loop_state.values.version.edits:
            return None
        return last.step

    @ledger.saving
    def save(
        self, directory: PathLike, basename: str, retention: Retention | None = None
    ) -> None:
        """Begins to write a checkpoint, unless the loss is NaN.

        `retention` replaces the checkpoints to keep for this save.

        Raises an error of the previous checkpoint, or `NanLossDuringTrainingError` if
        trained values that are written before training continues are not finite.
        """
        self.wait()
        values = self._loop_state.values
        version, has_run = values.version, values.runs > 0
        # Steps with errors are not saved.
        self._loop_state.wait()
        ledger.note_save()
        if has_run and np.isnan(self._loop_state.results.loss):
            return
        path = os.path.join(os.fsdecode(directory), basename)
        _logger.info("Saving checkpoints for %d into %s.", values.step, path)
        begun = self._begun(
            name_for(values.step, path), has_run, retention or self._retention
        )
        key = self._key(directory)

        def complete() -> None:
            begun.complete()
            # The written checkpoint may already be deleted.
            with contextlib.suppress(Exception):
                if key == self._own_key:
                    values.set_source(
                        version, Source.from_checkpoint(begun.files.prefix)
                    )

        self._writer.start(directory, ledger.in_background(complete))
        self._writing = {key: version}

    @ledger.saving
    def wait(self) -> None:
        """Waits until the last checkpoint is written, and raises its error."""
        writing, self._writing = self._writing, {}
        self._writer.wait()
        self._written |= writing

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.wait()
        except Exception:
            if kind is None:
                raise
            _logger.exception("The last checkpoint could not be written.")
        finally:
            self._exchange.close()

    def _begun(self, prefix: str, has_run: bool, retention: Retention) -> BegunSave:
        """Copies or writes the values that training may donate."""
        values = self._loop_state.values
        saved = self._runtime.values.to_save(
            values, self._hosts.is_chief, self._shard_writer
        )
        # Other processes wait longer for a chief with a slow disk.
        patience = values.nbytes / _SLOW_BYTES_PER_SEC
        trained = self._trained_paths()
        finite = FiniteValues({*trained} if has_run else set(), values.step)
        token = self._exchange.from_chief(new_token)
        additions = self._additions
        collections = {**additions.collections, "trainable_variables": trained}
        files = SaveFiles(prefix, token, additions.saved_objects, collections)
        positions = self._positions.beside(files, values.version)
        shards = None
        if self._shard_writer is not None and saved.sharded:
            with files.tidied_on_failure():
                shards = self._begin_shards(
                    self._shard_writer, files, saved.sharded, finite
                )
                # Otherwise a fast process would wait for the devices of the others,
                # and report them as stuck.
                not_finite = self._exchange.gather(
                    finite.not_finite, more_patience_secs=patience
                )
                finite.raise_if_any(not_finite)
        return BegunSave(
            files=files,
            format_name=self._format,
            unsharded=saved.unsharded,
            shards=shards,
            finite=finite,
            positions=positions,
            retention=retention,
            exchange=self._exchange,
            is_chief=self._hosts.is_chief,
            patience=patience,
        )

    def _begin_shards(
        self,
        writer: ShardWriter,
        files: SaveFiles,
        values: Mapping[str, ShardValues],
        finite: FiniteValues,
    ) -> BegunShards:
        self._exchange.by_chief(lambda: writer.prepare(files))
        finish = writer.begin(
            files, finite.step, finite.checked(values), self._hosts.index
        )
        variables = {path: value.variable for path, value in values.items()}
        return BegunShards(variables, finish)

    def _key(self, directory: PathLike) -> str:
        return self._real_path(os.fsdecode(directory))

    @property
    def _own_key(self) -> str:
        return self._key(self._model_dir)

    def _trained_paths(self) -> list[str]:
        variables = self._runtime.program.store.variables
        return [path for path, variable in variables.items() if variable.trainable]
