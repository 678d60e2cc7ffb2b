"""The values of one call: of its model's variables, and those that its steps return.

`jax.lax.scan` is compiled for a fixed number of steps. In the loop of this file the
range of steps is an argument, so that one compiled program runs any number of its rows.
Large outputs, such as images, are returned only for the last step, because stacking
them would need the memory of all steps.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from keras_tpu_estimator.base.common.ledger import note_step, stepping
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.tracing import jaxprs
from keras_tpu_estimator.base.tracing.variables import AnyArraysByPath
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.files.directory import location

_LAST_STEP = 2**31 - 1
_STEP_ADVICE = (
    "Save the variables of the last checkpoint under a smaller step by "
    "kte.checkpoints.save in another model_dir, and continue there."
)


def check_step(step: int, checkpoint: str) -> None:
    """Raises an error if a checkpoint's global step does not fit devices' 32 bits."""
    if not 0 <= step <= _LAST_STEP:
        raise ValueError(
            f"The global step of a checkpoint must be at most {_LAST_STEP}, "
            f"because devices count it in 32 bits. Received {step} in "
            f"{checkpoint!r}. {_STEP_ADVICE}"
        )


@dataclasses.dataclass(frozen=True)
class Version:
    """The identity of a call's values: equal only for equal values.

    It has the global step, the number of steps of the call, and the number of times
    that user code has assigned values.
    """

    step: int
    runs: int = 0
    edits: int = 0


@dataclasses.dataclass(frozen=True)
class Source:
    """The source of values: a checkpoint under any of its names, or initialization.

    The version of the checkpoint's file identifies it, so that two sources with
    different names may be equal. Both fields are `None` for initial values.
    """

    checkpoint: str | None = dataclasses.field(compare=False)
    content: tuple[object, ...] | None

    @classmethod
    def from_checkpoint(cls, checkpoint: str | None) -> Self:
        """Returns the source for the current content of a checkpoint that exists."""
        if checkpoint is None:
            return cls(None, None)
        file = location.main_file(checkpoint) or checkpoint
        return cls(checkpoint, paths.version(file))


class RunState(Mapping[str, jax.Array]):
    """The values of the variables during one call, by path.

    Values that steps and user code assign remain for the rest of the call. The
    `version` identifies the values for code that saves, reports or caches them.
    Checkpoints contain the `overridden` constants, which callbacks of this and earlier
    calls have set. `on_edit` receives the values that user code assigns, by path.
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
        self._version_and_source = self._version, source
        self.on_edit: Callable[[AnyArraysByPath], None] | None = None

    def __getitem__(self, path: str) -> jax.Array:
        return self._values[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def nbytes(self) -> int:
        """The bytes of all values."""
        return sum(value.nbytes for value in self._values.values())

    @property
    def version(self) -> Version:
        """The identity of the current values, which devices may still compute."""
        return self._version

    @property
    def step(self) -> int:
        """The global step of the values."""
        return self._version.step

    @property
    def source(self) -> Source | None:
        """The source of equal values, or `None`."""
        version, source = self._version_and_source
        return source if version == self._version else None

    @property
    def checkpoint(self) -> str | None:
        """The prefix of the checkpoint with equal values, or `None`."""
        return None if self.source is None else self.source.checkpoint

    def set_source(self, version: Version, source: Source) -> None:
        """Sets the source of a version of the values. Any thread may call it."""
        self._version_and_source = version, source

    @property
    def runs(self) -> int:
        """The number of steps of the call."""
        return self._version.runs

    def update(
        self,
        assigned: Mapping[str, jax.Array],
        runs: int = 0,
        step: int | None = None,
    ) -> None:
        """Applies values that `runs` steps have assigned, and their global step."""
        old = self._version
        step = old.step if step is None else step
        if not 0 <= step <= _LAST_STEP:
            raise ValueError(
                f"The global step must be at most {_LAST_STEP}, because "
                "devices count it in 32 bits. Received more steps after "
                f"{old.step}. {_STEP_ADVICE}"
            )
        # The version changes first. After an interrupt it must be a version that
        # is not saved, rather than a saved version with other values.
        self._version = Version(step, old.runs + runs, old.edits)
        self._values.update(assigned)
        if runs:
            note_step(step)

    @contextlib.contextmanager
    def without_edits(self) -> Iterator[None]:
        """Discards the values that user code assigns in the `with` block."""
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
        """Applies values that user code has assigned, some of which are constants."""
        self._version = dataclasses.replace(
            self._version, edits=self._version.edits + 1
        )
        self.overridden = self.overridden.union(overridden)
        self._values.update(assigned)


@dataclasses.dataclass(frozen=True, eq=False)
class StepValues:
    """One value for each step of a loop, sliced to those steps on the host.

    A loop returns `rows` of shape `[rows, ...]` on the devices for all steps that its
    program could run. NumPy sees only the rows of the `steps` that ran.
    """

    rows: jax.Array | np.ndarray
    steps: range

    @classmethod
    def from_rows(cls, tree: PyTree, steps: range) -> PyTree:
        """Returns a pytree of arrays as one of `StepValues`."""
        return jax.tree.map(lambda rows: cls(rows, steps), tree)

    @classmethod
    def all_rows(cls, values: Any) -> Self:
        """Returns `StepValues`, or all rows of an array as some."""
        if isinstance(values, cls):
            return values
        rows = np.asarray(values)
        return cls(rows, range(len(rows)))

    def __len__(self) -> int:
        return len(self.steps)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        with stepping:  # This waits for the devices.
            rows = np.asarray(self.rows)[self.steps.start : self.steps.stop]
        if dtype is not None:
            rows = rows.astype(dtype, copy=False)
        return np.array(rows) if copy else rows

    def block_until_ready(self) -> Self:
        """Waits until the devices have run the steps."""
        jax.block_until_ready(self.rows)
        return self


def scan_with_newest(
    step: Callable[[PyTree, PyTree], tuple[PyTree, PyTree, PyTree]],
    state: PyTree,
    xs: PyTree,
    span: jax.Array,
) -> tuple[PyTree, PyTree, PyTree]:
    """Runs one step for each row in a range of `xs`.

    Args:
        step: Takes a state and one row. Returns the next state and two pytrees
            of outputs.
        xs: Pytree of arrays that are stacked along their first axis.
        span: Two integers: the first row, and the one after the last. The range
            must not be empty.

    Returns:
        The last state; the first outputs, stacked in the rows of `span`, with
        zeros in all other rows; and the second outputs of the last step.
    """
    rows = len(jax.tree.leaves(xs)[0])

    def at(index: jax.Array | int) -> PyTree:
        return jax.tree.map(
            lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), xs
        )

    # The step is traced once, for the shapes of its outputs and for the loop,
    # where a jitted step is one equation. JAX does not prune this loop's body.
    traced, shapes = jax.make_jaxpr(jax.jit(step), return_shape=True)(state, at(0))
    run = jex.jaxpr_as_fun(jaxprs.without_dead_code(traced))
    _, stacked, newest = shapes
    outputs_of = functools.partial(jax.tree.unflatten, jax.tree.structure(shapes))
    none_yet = (
        jax.tree.map(lambda s: jnp.zeros((rows, *s.shape), s.dtype), stacked),
        jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), newest),
    )

    def make(index: jax.Array, carry: PyTree) -> PyTree:
        state, stacked, _ = carry
        inputs = jax.tree.leaves((state, at(index)))
        state, outputs, newest = outputs_of(run(*inputs))
        stacked = jax.tree.map(
            lambda rows, row: jax.lax.dynamic_update_index_in_dim(
                rows, row, index, axis=0
            ),
            stacked,
            outputs,
        )
        return state, stacked, newest

    last: tuple[PyTree, PyTree, PyTree] = jax.lax.fori_loop(
        span[0], span[1], make, (state, *none_yet)
    )
    return last
