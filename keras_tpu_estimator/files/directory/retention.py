"""The rule that decides which checkpoints are kept."""

import dataclasses
import math

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
