"""The initialization of a program, besides restoring a checkpoint."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import keras
import numpy as np

from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.base.common.dtype_changes import as_dtype
from keras_tpu_estimator.base.common.shown import plain_name, shown
from keras_tpu_estimator.base.tracing.variable_classes import own_rows

_OF_TENSORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.UnexpectedTracerError,
)

# The fields with graph ops, which have no effect.
_OF_A_GRAPH = (
    "init_op",
    "init_feed_dict",
    "ready_op",
    "ready_for_local_init_op",
    "local_init_op",
    "summary_op",
    "local_init_feed_dict",
)


class InitSession(Session):
    """A session that reads and sets initial values, for an `init_fn`.

    Args:
        values: Values by path.
        rows: Number of rows of some variables, of which devices may have more.
            Defaults to none.

    Attributes:
        assigned: New initial values by path.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        rows: Mapping[str, int] | None = None,
    ):
        self._values = values
        self._rows = dict(rows or {})
        self.assigned: dict[str, np.ndarray] = {}
        super().__init__(lambda path: self.assigned.get(path, self._old(path)))

    def assign(self, values: Mapping[str, Any]) -> None:
        """Assigns initial values to variables.

        Args:
            values: Arrays by the path of a variable.

        Raises:
            KeyError: A variable does not exist.
            ValueError: A value has another shape than its variable, or does
                not fit its dtype.
        """
        for path, value in values.items():
            shape = self._shape(path)
            if np.shape(value) != shape:
                raise ValueError(
                    f"The value for {path!r} must have the variable's shape "
                    f"{shape}. Received shape {np.shape(value)}."
                )
            dtype = self._values[path].dtype
            name = f"The value that is assigned to {path!r}"
            self.assigned[path] = np.asarray(as_dtype(value, dtype, name))

    def _old(self, path: str) -> Any:
        shape = self._shape(path)
        value = self._values[path]
        return own_rows(value, shape[0]) if path in self._rows else value

    def _shape(self, path: str) -> tuple[int, ...]:
        if path not in self._values:
            raise KeyError(
                f"The path of a variable must exist. Received: {path!r}. Use one of "
                f"{sorted(self._values)}."
            )
        shape = tuple(self._values[path].shape)
        return (self._rows[path], *shape[1:]) if path in self._rows else shape


@dataclasses.dataclass(frozen=True)
class Scaffold:
    """The initialization of variables before a program's first step.

    The counterpart of `tf.compat.v1.train.Scaffold`, the result of a spec's
    `scaffold_fn`, or the `scaffold` of an `EstimatorSpec`.

    Args:
        init_fn: Called as `init_fn(scaffold, session)` if no checkpoint is
            restored. `session.run(names)` reads variables, and
            `session.assign({path: value})` sets them. Defaults to `None`.
        saver: Must be `None`: use `variables_to_restore`.
        copy_from_scaffold: A `Scaffold` whose settings replace missing ones.
            Defaults to `None`.
        variables_to_restore: Dict from names in the checkpoint to the variables
            (or their paths) into which `evaluate` and `predict` load them, such
            as `ExponentialMovingAverage.variables_to_restore()`. Other
            variables are restored under their own names. Defaults to `None`.
        init_op: Accepted for compatibility, like all arguments about graphs; a
            warning is logged if it is set.
        init_feed_dict: Accepted, as `init_op`.
        ready_op: Accepted, as `init_op`.
        ready_for_local_init_op: Accepted, as `init_op`.
        local_init_op: Accepted, as `init_op`.
        summary_op: Accepted, as `init_op`.
        local_init_feed_dict: Accepted, as `init_op`.

    Raises:
        TypeError: `init_fn` is not callable, or an argument has a wrong type.
        ValueError: `saver` is set.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> scaffold = kte.Scaffold(
    ...     variables_to_restore={"average/kernel": "dense/kernel"})
    >>> scaffold.sources
    {'dense/kernel': 'average/kernel'}
    """

    init_op: Any = None
    init_feed_dict: Any = None
    init_fn: Callable[["Scaffold", InitSession], None] | None = None
    ready_op: Any = None
    ready_for_local_init_op: Any = None
    local_init_op: Any = None
    summary_op: Any = None
    saver: None = None
    copy_from_scaffold: "Scaffold | None" = None
    local_init_feed_dict: Any = None
    variables_to_restore: Mapping[str, keras.Variable | str] | None = None

    def __post_init__(self) -> None:
        copied = self.copy_from_scaffold
        if copied is not None:
            if not isinstance(copied, Scaffold):
                raise _type_error("copy_from_scaffold", "a Scaffold", copied)
            for name in ("init_fn", "variables_to_restore"):
                if getattr(self, name) is None:
                    object.__setattr__(self, name, getattr(copied, name))
        if self.saver is not None:
            raise ValueError(
                "`saver` must be None, because checkpoints contain every "
                f"variable. Received: {self.saver!r}. Pass the dict of the "
                "saver as `variables_to_restore`."
            )
        if self.init_fn is not None and not callable(self.init_fn):
            raise _type_error("init_fn", "a function", self.init_fn)
        restored = self.variables_to_restore
        if restored is not None and not isinstance(restored, Mapping):
            raise _type_error("variables_to_restore", "a dict", restored)
        self._warn_of_graph_ops()

    @property
    def sources(self) -> dict[str, str]:
        """The names that variables are restored from, by path."""
        return {
            getattr(variable, "path", variable): plain_name(name)
            for name, variable in (self.variables_to_restore or {}).items()
        }

    def _warn_of_graph_ops(self) -> None:
        ops = [name for name in _OF_A_GRAPH if getattr(self, name) is not None]
        if ops:
            warnings.warn(
                "These arguments of Scaffold are about a graph and have no "
                f"effect with JAX: {', '.join(ops)}. Leave them out, or use "
                "`init_fn`.",
                UserWarning,
                stacklevel=4,
            )


def make_scaffold(scaffold_fn: Callable[[], Any]) -> Scaffold:
    """Calls a spec's `scaffold_fn`, which must return a `Scaffold` and use no tensor of
    `model_fn`.
    """
    with without_tensors("scaffold_fn"):
        scaffold = scaffold_fn()
    if not isinstance(scaffold, Scaffold):
        raise ValueError(
            f"`scaffold_fn` must return a Scaffold. Received: {shown(scaffold)}"
        )
    return scaffold


@contextlib.contextmanager
def without_tensors(caller: str) -> Iterator[None]:
    """Explains the error if a function on the host uses a tensor."""
    try:
        yield
    except _OF_TENSORS as error:
        raise ValueError(
            f"`{caller}` runs once, on the host, and must not use a tensor of "
            "model_fn: tensors have values only on the devices, in each "
            "step. Received one. In `init_fn` fetch a variable by "
            "session.run(path)."
        ) from error


def _type_error(name: str, expected: str, received: Any) -> TypeError:
    return TypeError(f"`{name}` must be {expected}. Received: {shown(received)}")
