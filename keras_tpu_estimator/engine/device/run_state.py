"""The values of a model's variables during one call."""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Self

import jax

from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.tracing.variables import AnyArraysByPath

_LAST_STEP = 2**31 - 1
_STEP_ADVICE = (
    "Save the variables of the last checkpoint under a smaller step by "
    "kte.checkpoints.save in another model_dir, and continue there."
)


def check_step(step: int, checkpoint: str) -> None:
    """Checks that devices can count on from a checkpoint's global step.

    Raises:
        ValueError: The step does not fit 32 bits.
    """
    if not 0 <= step <= _LAST_STEP:
        raise ValueError(
            f"The global step of a checkpoint must be at most {_LAST_STEP}, "
            f"because devices count it in 32 bits. Received {step} in "
            f"{checkpoint!r}. {_STEP_ADVICE}"
        )


@dataclasses.dataclass(frozen=True)
class Version:
    """Which values of one call they are: equal for the same ones alone.

    Attributes:
        step: The global step.
        runs: How many steps the call has made. Defaults to 0.
        edits: How often user code has changed values in the call. Defaults to
            0.

    Example:

    >>> Version(10) == Version(10), Version(10) == Version(10, edits=1)
    (True, False)
    """

    step: int
    runs: int = 0
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

        Raises:
            FileNotFoundError: There is no such checkpoint.
        """
        if checkpoint is None:
            return cls(None, None)
        file = location.main_file(checkpoint) or checkpoint
        return cls(checkpoint, paths.version(file))


class RunState(Mapping[str, jax.Array]):
    """The values of the variables during one call, by path.

    What steps and user code assign holds for the rest of the call. They say
    themselves which values they are: who saves, reports or keeps them asks.

    Args:
        source: Where the same are to be had, if anywhere. Defaults to `None`.
        overridden: Paths of constants that a callback has set, which makes
            them state. Defaults to none.

    Attributes:
        overridden: The same, with those that are set in the call.
        on_edit: Told what user code assigns, by path; `None` for nobody.
    """

    def __init__(
        self,
        values: Mapping[str, jax.Array],
        mode: str,
        source: Source | None = None,
        overridden: Collection[str] = (),
    ):
        self._values = dict(values)
        self.mode = mode
        self.overridden = frozenset(overridden)
        self._version = Version(int(values[GLOBAL_STEP]))
        self._held = self._version, source
        self.on_edit: Callable[[AnyArraysByPath], None] | None = None

    def __getitem__(self, path: str) -> jax.Array:
        return self._values[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def version(self) -> Version:
        """Which values they are now, be they made already or on their way."""
        return self._version

    @property
    def step(self) -> int:
        """The global step that they are of."""
        return self._version.step

    @property
    def source(self) -> Source | None:
        """Where the very same are to be had; `None` if they are nowhere."""
        version, source = self._held
        return source if version == self._version else None

    @property
    def checkpoint(self) -> str | None:
        """The prefix of the checkpoint that holds the same, if one does."""
        return None if self.source is None else self.source.checkpoint

    def held(self, version: Version, source: Source) -> None:
        """Tells that values which these were are to be had; on any thread."""
        self._held = version, source

    @property
    def runs(self) -> int:
        """The number of steps that the call has made."""
        return self._version.runs

    def update(
        self,
        assigned: Mapping[str, jax.Array],
        runs: int = 0,
        step: int | None = None,
    ) -> None:
        """Takes the values that steps have assigned.

        Args:
            runs: How many steps have assigned them. Defaults to 0.
            step: The global step of the values. Defaults to the current one.

        Raises:
            ValueError: The step does not fit 32 bits.
        """
        old = self._version
        step = old.step if step is None else step
        if not 0 <= step <= _LAST_STEP:
            raise ValueError(
                f"The global step must be at most {_LAST_STEP}, because "
                "devices count it in 32 bits. Received more steps after "
                f"{old.step}. {_STEP_ADVICE}"
            )
        # First: to be interrupted in between should end in no version that is
        # saved, rather than in a wrong one.
        self._version = Version(step, old.runs + runs, old.edits)
        self._values.update(assigned)

    @contextlib.contextmanager
    def without_edits(self) -> Iterator[None]:
        """Drops what user code assigns in the `with` block."""
        before = self._version, self.overridden, dict(self._values)
        try:
            yield
        finally:
            self._version, self.overridden, self._values = before

    def edit(
        self,
        assigned: Mapping[str, jax.Array],
        overridden: Collection[str] = (),
    ) -> None:
        """Takes what user code has assigned.

        Args:
            overridden: Paths of constants among them that are state from now
                on. Defaults to none.
        """
        self._version = dataclasses.replace(
            self._version, edits=self._version.edits + 1
        )
        self.overridden = self.overridden.union(overridden)
        self._values.update(assigned)
