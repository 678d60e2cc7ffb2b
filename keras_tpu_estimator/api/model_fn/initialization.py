"""Initial values from a checkpoint, whose names may differ."""

import contextlib
import contextvars
import logging
from collections.abc import Collection, Iterator, Mapping

import keras

from keras_tpu_estimator.base.common.types import CheckpointLike
from keras_tpu_estimator.base.tracing.variables import (
    current_scope,
    is_accumulator,
    is_seed,
)
from keras_tpu_estimator.files.formats.loading import load_checkpoint
from keras_tpu_estimator.files.formats.reader import CheckpointReader
from keras_tpu_estimator.files.warm_start.assignment import (
    AssignmentMap,
    resolve_assignments,
)
from keras_tpu_estimator.files.warm_start.pairing import Source, Target

_logger = logging.getLogger("keras_tpu_estimator")


_target: contextvars.ContextVar[Target | None] = contextvars.ContextVar(
    "initialization_target", default=None
)


@contextlib.contextmanager
def initializing(target: Target) -> Iterator[None]:
    """Makes `init_from_checkpoint` work in a `with` block."""
    token = _target.set(target)
    try:
        yield
    finally:
        _target.reset(token)


def program_variables() -> Mapping[str, keras.Variable]:
    """Returns the variables of the program that is being built, by path."""
    target = _target.get()
    return {} if target is None else target.variables


def init_from_checkpoint(
    ckpt_dir_or_file: CheckpointLike,
    assignment_map: AssignmentMap,
) -> None:
    """Initializes variables from a checkpoint.

    For use in a `model_fn`, after its layers are called, or in a `scaffold_fn`.
    It has no effect if training resumes from a checkpoint in `model_dir`.

    Args:
        ckpt_dir_or_file: As in `load_checkpoint`: a checkpoint of this package,
            TensorFlow or Orbax, a SavedModel, a Keras or safetensors file, or a
            dict of arrays.
        assignment_map: The mapping from the checkpoint to variables, as a dict
            or as pairs: `{"name in the checkpoint": variable}`, with a
            variable's path (":0" may follow) or the `keras.Variable`; or
            `{"scope/": "scope/"}` for all variables under a path, where "/" is
            the root.

    Raises:
        ValueError: The call is not in one of these functions; a name is not in
            the checkpoint; a path is not in the model; or two shapes differ.
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
            "`init_from_checkpoint` was called outside a model_fn. Call it in "
            "model_fn or in scaffold_fn, where the variables are."
        )
    scope = current_scope()
    variables = {**target.variables, **(scope.objects if scope else {})}
    variables = {
        path: variable
        for path, variable in variables.items()
        if _is_weight(variable) and path not in target.constants
    }
    reader = load_checkpoint(ckpt_dir_or_file)
    names = resolve_assignments(assignment_map, variables, reader)
    earlier_names = {path: source.name for path, source in target.sources.items()}
    for path, name in names.items():
        target.sources[path] = Source(reader, name)
    if names.items() <= earlier_names.items():
        return  # An earlier trace of the same function has logged it.
    for path, name in names.items():
        _logger.debug("Initial value of %s: %s in %s", path, name, reader.path)
    trainable = [path for path, variable in variables.items() if variable.trainable]
    _report(trainable, target.sources, reader)


def _report(
    trainable: Collection[str],
    sources: Collection[str],
    reader: CheckpointReader,
) -> None:
    """Logs the number of initialized variables, and the names of the others."""
    uninitialized = sorted(set(trainable) - set(sources))
    _logger.log(
        logging.WARNING if uninitialized else logging.INFO,
        "%d of %d trainable variables have initial values from checkpoints, "
        "the last from %s.%s",
        len(trainable) - len(uninitialized),
        len(trainable),
        reader.path,
        f" The others keep their initializers: {', '.join(uninitialized)}."
        if uninitialized
        else "",
    )


def _is_weight(variable: keras.Variable) -> bool:
    """Returns whether a variable is a weight, unlike those of this package."""
    return not (
        is_accumulator(variable) or is_seed(variable) or variable.path == "global_step"
    )
