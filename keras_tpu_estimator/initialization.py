"""Initial values from a checkpoint, by names that may differ."""

import contextlib
import contextvars
import dataclasses
import logging
import os
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_tpu_estimator.checkpoints import reading
from keras_tpu_estimator.variables import current_scope
from keras_tpu_estimator.variables import is_accumulator

_logger = logging.getLogger("keras_tpu_estimator")

AssignmentMap = Mapping[str, Any] | Iterable[tuple[str, Any]]


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a variable's initial value is.

    Attributes:
        reader: The checkpoint.
        name: The variable's name there.
    """

    reader: reading.Reader
    name: str

    def value(self) -> np.ndarray:
        """The value."""
        return np.asarray(self.reader.get_tensor(self.name))


@dataclasses.dataclass(frozen=True)
class Target:
    """A program's variables, and the initial values they are to have.

    Attributes:
        variables: The variables by path.
        sources: Where initial values are, by path.
    """

    variables: Mapping[str, keras.Variable]
    sources: dict[str, Source]


_target: contextvars.ContextVar[Target | None] = contextvars.ContextVar(
    "initialization_target", default=None
)


@contextlib.contextmanager
def initializing(target: Target) -> Iterator[None]:
    """Lets `init_from_checkpoint` work in a `with` block."""
    token = _target.set(target)
    try:
        yield
    finally:
        _target.reset(token)


def init_from_checkpoint(
    ckpt_dir_or_file: str | os.PathLike, assignment_map: AssignmentMap
) -> None:
    """Takes initial values of variables from a checkpoint.

    For use in a `model_fn`, after its layers are called, or in a
    `scaffold_fn`. Where training finds a checkpoint of its own, that one is
    restored, and this has no effect.

    Args:
        ckpt_dir_or_file: A checkpoint of this package or of TensorFlow, its
            directory, or a SavedModel.
        assignment_map: What of the checkpoint goes where, as a dict or as
            pairs: `{"name in the checkpoint": variable}`, with a variable's
            path (":0" may follow) or the `keras.Variable`; or
            `{"scope/": "scope/"}` for all variables under a path, where "/"
            is everything.

    Raises:
        ValueError: It is called elsewhere; a name is not in the checkpoint; a
            path is not in the model; or two shapes differ.
        TypeError: `assignment_map` is malformed.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import keras
    >>> def model_fn(features, labels, mode, params):
    ...     y = keras.layers.Dense(1, name="head")(features)
    ...     kte.init_from_checkpoint(params["start"], {"dense/": "head/"})
    ...     loss = keras.ops.mean((y - labels) ** 2)
    ...     optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    ...     return kte.TPUEstimatorSpec(
    ...         mode, loss=loss, train_op=optimizer.minimize(loss))

    Reference: `tf.compat.v1.train.init_from_checkpoint`.
    """
    target = _target.get()
    if target is None:
        raise ValueError(
            "`init_from_checkpoint` was called outside a model_fn. Expected a "
            "call in model_fn or in scaffold_fn, where the variables are."
        )
    scope = current_scope()
    variables = {**target.variables, **(scope.objects if scope else {})}
    reader = reading.open_any(ckpt_dir_or_file)
    shapes = reader.get_variable_to_shape_map()
    where = os.fspath(ckpt_dir_or_file)
    for path, name in _assigned(assignment_map, variables).items():
        if name not in shapes:
            raise ValueError(
                f"The checkpoint {where!r} has no variable {name!r}, from "
                f"which {path!r} should start. It has {sorted(shapes)}."
            )
        shape = tuple(variables[path].shape)
        if tuple(shapes[name]) != shape:
            raise ValueError(
                f"The shape of {path!r} should be that of {name!r} in "
                f"{where!r}. Expected {tuple(shapes[name])}. Received {shape}: "
                "leave it out of `assignment_map`, or change the layer."
            )
        _logger.info("Initial value of %s: %s in %s", path, name, where)
        target.sources[path] = Source(reader, name)


def _assigned(
    assignment_map: AssignmentMap, variables: Mapping[str, keras.Variable]
) -> dict[str, str]:
    """The name in the checkpoint for each path in the model."""
    pairs = assignment_map
    if isinstance(assignment_map, Mapping):
        pairs = assignment_map.items()
    names: dict[str, str] = {}
    for name, wanted in _checked_pairs(pairs):
        if name.endswith("/"):
            names |= _under_scope(name, wanted, variables)
            continue
        path = getattr(wanted, "path", wanted).removesuffix(":0")
        if path not in variables:
            raise ValueError(
                f"The model has no variable {path!r}, which `assignment_map` "
                f"gives the value of {name!r}. It has {sorted(variables)}."
            )
        names[path] = name
    return names


def _checked_pairs(pairs: Any) -> Iterator[tuple[str, Any]]:
    for pair in pairs:
        is_pair = isinstance(pair, tuple) and len(pair) == 2
        if not is_pair or not isinstance(pair[1], str | keras.Variable):
            raise TypeError(
                "`assignment_map` should be a dict, or pairs, from names in "
                "the checkpoint to paths or variables of the model. Received: "
                f"{pair!r}"
            )
        yield pair


def _under_scope(
    name: str, wanted: Any, variables: Mapping[str, keras.Variable]
) -> dict[str, str]:
    """The names for all variables under a path."""
    if not isinstance(wanted, str) or not wanted.endswith("/"):
        raise ValueError(
            f"A scope of the checkpoint, {name!r}, should be assigned to a "
            f"scope of the model. Expected a path that ends in '/'. Received: "
            f"{wanted!r}"
        )
    theirs = "" if name == "/" else name
    ours = "" if wanted == "/" else wanted
    found = {
        path: theirs + path.removeprefix(ours)
        for path, variable in variables.items()
        if path.startswith(ours) and _is_weight(path, variable)
    }
    if not found:
        raise ValueError(
            f"The model has no variables under {wanted!r}. It has "
            f"{sorted(variables)}."
        )
    return found


def _is_weight(path: str, variable: keras.Variable) -> bool:
    """Whether a variable is none of those that only this package has."""
    is_seed = path.endswith("seed_generator_state")
    return (
        path != "global_step" and not is_seed and not is_accumulator(variable)
    )
