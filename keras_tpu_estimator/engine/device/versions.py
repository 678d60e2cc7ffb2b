"""Which values they are, and in which checkpoint the same ones lie."""

import dataclasses
from typing import Self

from keras_tpu_estimator.files.checkpoints import location
from keras_tpu_estimator.ground.storage import paths


@dataclasses.dataclass(frozen=True)
class Version:
    """Which values of one call they are: equal for the same ones alone.

    Attributes:
        step: The global step.
        edits: How often user code has changed values in the call. Defaults to
            0.

    Example:

    >>> Version(10) == Version(10), Version(10) == Version(10, edits=1)
    (True, False)
    """

    step: int
    edits: int = 0


@dataclasses.dataclass(frozen=True)
class Source:
    """Where values came from, or are to be had again.

    Attributes:
        checkpoint: The prefix of a checkpoint, under any of its names; `None`
            for initial values.
        content: Another one as soon as the checkpoint's file has another
            content.

    Example:

    >>> Source.of(None) == Source.of(None)
    True
    """

    checkpoint: str | None = dataclasses.field(compare=False)
    content: tuple[object, ...] | None

    @classmethod
    def of(cls, checkpoint: str | None) -> Self:
        """The source of what is to be had now.

        Args:
            checkpoint: The prefix of a checkpoint, or `None`.

        Raises:
            FileNotFoundError: There is no such checkpoint.
        """
        if checkpoint is None:
            return cls(None, None)
        file = location.main_file(checkpoint) or checkpoint
        return cls(checkpoint, paths.version(file))
