"""The rules that decide which checkpoints are kept: the newest and the best."""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Mapping
from typing import SupportsFloat

from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.parsing import parsing
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.directory.state_file import CheckpointState

_SECONDS_PER_HOUR = 3600.0


@dataclasses.dataclass(frozen=True)
class Retention:
    """The number of checkpoints to keep, and those to keep forever.

    Args:
        max_to_keep: The number of recent checkpoints to keep. None or 0 keeps
            all. Defaults to 5.
        keep_every_n_hours: A checkpoint that `max_to_keep` would delete is kept
            forever if it was saved at least this many hours after the last one
            kept for this reason (or after the first one saved). Defaults to
            10000.0, in practice never.

    Raises:
        ValueError: `max_to_keep` is negative or not an integer, or
            `keep_every_n_hours` is not a positive number.

    Example:

    >>> import os, tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> directory = tempfile.mkdtemp()
    >>> for step in (10, 20, 30):
    ...     prefix = checkpoints.save(
    ...         directory, step, {},
    ...         retention=checkpoints.Retention(max_to_keep=2))
    >>> sorted(name for name in os.listdir(directory) if "model" in name)
    ['model.ckpt-20.h5', 'model.ckpt-30.h5']
    """

    max_to_keep: int | None = 5
    keep_every_n_hours: float = 10000.0

    def __post_init__(self) -> None:
        keep = self.max_to_keep
        if keep is not None and (
            isinstance(keep, bool) or not isinstance(keep, int) or keep < 0
        ):
            raise ValueError(
                "`max_to_keep` must be an integer of at least 0, or None to "
                f"keep all checkpoints. Received: {keep!r}."
            )
        hours = self.keep_every_n_hours
        if (
            isinstance(hours, bool)
            or not isinstance(hours, int | float)
            or math.isnan(hours)
            or hours <= 0
        ):
            raise ValueError(
                "`keep_every_n_hours` must be a positive number of hours. "
                f"Received: {hours!r}."
            )

    def split(
        self, state: CheckpointState, best: str | None = None
    ) -> tuple[CheckpointState, tuple[str, ...]]:
        """Decides which checkpoints to delete.

        Args:
            state: The checkpoints, including the newest.
            best: The name of the best checkpoint, which is kept. Defaults to
                None.

        Returns:
            The state afterwards, and the names of the checkpoints to delete. A
            checkpoint that is kept forever is in neither.

        Example:

        >>> from keras_tpu_estimator.checkpoints import Retention
        >>> from keras_tpu_estimator.typing import CheckpointState, Saved
        >>> saved = (Saved("a", 7200.0), Saved("b", 7260.0))
        >>> state = CheckpointState("b", saved, 0.0)
        >>> state, dropped = Retention(1, keep_every_n_hours=2).split(state)
        >>> dropped, state.saved, state.last_preserved
        ((), (Saved(name='b', time=7260.0),), 7200.0)
        """
        if not self.max_to_keep:
            return state, ()
        preserved = state.last_preserved
        stay, dropped = [], []
        for old in state.saved[: -self.max_to_keep]:
            if old.name == best:
                stay.append(old)
            elif preserved is not None and self._outlives(old.time - preserved):
                preserved = old.time
            else:
                dropped.append(old.name)
        after = dataclasses.replace(
            state,
            saved=(*stay, *state.saved[-self.max_to_keep :]),
            last_preserved=preserved,
        )
        return after, tuple(dropped)

    def _outlives(self, seconds: float) -> bool:
        return seconds >= self.keep_every_n_hours * _SECONDS_PER_HOUR


FILE_NAME = "best_checkpoint.json"


@dataclasses.dataclass(frozen=True)
class KeepBest:
    """A rule that determines the best checkpoint, which is never deleted.

    After each evaluation of a checkpoint in `model_dir`, it is compared with
    the best one so far. If `train(validation=...)` finds better values, training
    saves them. The file 'best_checkpoint.json' names the best one, so that
    other processes can read it.

    Args:
        metric: The name of a result of `evaluate`. Defaults to 'loss'.
        mode: 'min' if lower is better, or 'max'. Defaults to 'min'.
        name: The `name` of the evaluations that count. Defaults to None, for
            those without a name, such as `validation`.

    Raises:
        ValueError: `mode` is unknown, or `metric` is not a name.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> config = kte.RunConfig(
    ...     keep_best=kte.checkpoints.KeepBest("accuracy", mode="max"))
    """

    metric: str = "loss"
    mode: str = "min"
    name: str | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(f"`mode` must be 'min' or 'max'. Received: {self.mode!r}.")
        if not isinstance(self.metric, str) or not self.metric:
            raise ValueError(
                "`metric` must be the name of a result of `evaluate`, such as "
                f"'loss'. Received: {self.metric!r}."
            )


@dataclasses.dataclass(frozen=True)
class _Best:
    """The content of the file; `checkpoint` is a name relative to the directory."""

    checkpoint: str
    metric: str
    mode: str
    value: float

    def is_at_least_as_good(self, new: "_Best") -> bool:
        """Returns whether this is another checkpoint, and at least as good."""
        is_other = self.checkpoint != new.checkpoint
        is_comparable = (self.metric, self.mode) == (new.metric, new.mode)
        if not is_other or not is_comparable:
            return False
        if self.mode == "min":
            return self.value <= new.value
        return self.value >= new.value


def best(model_dir: PathLike) -> str | None:
    """Finds the best checkpoint of a directory, according to `KeepBest`.

    Args:
        model_dir: A directory, which need not exist.

    Returns:
        A prefix such as '<model_dir>/model.ckpt-20', or None if no best
        checkpoint is known, or it was deleted.

    Raises:
        ValueError: 'best_checkpoint.json' is unreadable.

    Example:

    >>> import os
    >>> import keras_tpu_estimator as kte
    >>> import keras, numpy as np
    >>> def model_fn(features, labels, mode, params):
    ...     loss = keras.ops.mean(keras.layers.Dense(1)(features) ** 2)
    ...     train_op = kte.minimize(keras.optimizers.SGD(0.1), loss)
    ...     return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
    >>> config = kte.RunConfig(keep_best=kte.checkpoints.KeepBest())
    >>> estimator = kte.TPUEstimator(model_fn, config=config, use_tpu=False)
    >>> def input_fn(params):
    ...     return np.ones((4, 2), "float32")
    >>> for _ in range(2):
    ...     result = estimator.train(input_fn, steps=5).evaluate(
    ...         input_fn, steps=1)
    >>> os.path.basename(kte.checkpoints.best(estimator.model_dir))
    'model.ckpt-10'
    """
    model_dir = os.fsdecode(model_dir)
    record = _load(model_dir)
    if record is None:
        return None
    prefix = os.path.join(model_dir, record.checkpoint)
    return prefix if location.exists(prefix) else None


def note(
    keep: KeepBest,
    model_dir: str,
    checkpoint: str,
    result: Mapping[str, SupportsFloat],
) -> None:
    """Records the evaluation of a checkpoint, whose result must contain the metric."""
    directory, name = os.path.split(checkpoint)
    is_ours = paths.canonical(directory) == paths.canonical(model_dir)
    is_best = would_be_best(keep, model_dir, name, result)
    if not is_best or not is_ours or not location.exists(checkpoint):
        return
    new = _Best(name, keep.metric, keep.mode, _number(keep, result))
    with commit.replacing(os.path.join(model_dir, FILE_NAME)) as partial:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(new), file, indent=2)


def would_be_best(
    keep: KeepBest,
    model_dir: str,
    name: str,
    result: Mapping[str, SupportsFloat],
) -> bool:
    """Returns whether a checkpoint would be the best one of a directory, or is it."""
    value = _number(keep, result)
    if math.isnan(value):
        return False
    new = _Best(name, keep.metric, keep.mode, value)
    before = _load(model_dir) if best(model_dir) else None
    return before is None or not before.is_at_least_as_good(new)


def _number(keep: KeepBest, result: Mapping[str, SupportsFloat]) -> float:
    try:
        return float(result[keep.metric])
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"The metric of `keep_best`, {keep.metric!r}, must be a number "
            f"among the results of `evaluate`. Received: {dict(result)}. Name "
            f"one of {sorted(result)}."
        ) from None


def _load(model_dir: str) -> _Best | None:
    path = os.path.join(model_dir, FILE_NAME)
    advice = "Delete it; the next evaluation writes a new one."
    with (
        contextlib.suppress(FileNotFoundError),
        parsing(path, "name the best checkpoint", advice),
        paths.opened(path) as file,
    ):
        record = _Best(**json.load(file))
        if os.path.basename(record.checkpoint) != record.checkpoint:
            raise ValueError("the checkpoint is in another directory")
        return record
    return None
