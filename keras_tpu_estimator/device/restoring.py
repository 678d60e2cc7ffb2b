"""Where the values of a model's variables come from before its first step."""

import logging
from collections.abc import Iterable
from collections.abc import Mapping

import jax
import keras
import numpy as np

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.checkpoints.warm_start import warm_start_values
from keras_tpu_estimator.checkpoints.warm_start_settings import (
    WarmStartSettings,
)
from keras_tpu_estimator.model_fn.scaffold import InitSession
from keras_tpu_estimator.model_fn.scaffold import Scaffold
from keras_tpu_estimator.model_fn.scaffold import without_tensors
from keras_tpu_estimator.program.store import GLOBAL_STEP
from keras_tpu_estimator.program.store import VariableStore
from keras_tpu_estimator.tracing.variables import AnyValues

_logger = logging.getLogger("keras_tpu_estimator")


def initial_values(
    store: VariableStore,
    wanted: set[str],
    known: AnyValues,
    warm_start: WarmStartSettings | None,
) -> AnyValues:
    """The values that variables begin with.

    Args:
        store: The variables.
        wanted: Paths of those whose values are wanted.
        known: Values of others, which they may depend on.
        warm_start: Another model's checkpoint that some of them come from.
    """
    if warm_start is None:
        return store.initial_values(wanted, known)
    weights = {path: store.as_saved(path) for path in store.weights()}
    values, report = warm_start_values(warm_start, weights)
    _logger.info("%s", report)
    warm = with_all_rows(
        store, {path: v for path, v in values.items() if path in wanted}
    )
    made = store.initial_values(wanted - warm.keys(), {**known, **warm})
    return {**made, **warm}


def restored_values(
    store: VariableStore,
    checkpoint: str,
    wanted: set[str],
    required: Iterable[str],
) -> AnyValues:
    """The values that a checkpoint has of variables.

    Args:
        store: The variables.
        checkpoint: The checkpoint's prefix.
        wanted: Paths of those whose values are wanted, if they are there.
        required: Paths of those that have to be there.

    Raises:
        ValueError: The checkpoint lacks a variable, or has it in another
            shape.
    """
    _logger.info("Restoring parameters from %s", checkpoint)
    there = set(checkpoints.names(checkpoint))
    saved = set(store.saved_paths())
    # A learning rate is there only if a callback has set it.
    paths = wanted & saved & ({*required} | there)
    paths |= wanted & there & store.constants
    shapes = {p: tuple(store.as_saved(p).shape) for p in store.variables}
    values = read_checked(checkpoint, paths, shapes, store.inputs)
    return with_all_rows(store, values)


def with_all_rows(store: VariableStore, values: AnyValues) -> AnyValues:
    """Values as devices have them, where these have more rows, of zeros.

    Args:
        store: The variables.
        values: Values by path, as checkpoints have them.
    """
    more = {
        path: store.variables[path].shape[0] - store.rows[path]
        for path in values.keys() & store.rows.keys()
    }
    return dict(values) | {
        path: np.pad(values[path], ((0, rows), (0, 0)))
        for path, rows in more.items()
        if rows
    }


def read_checked(
    checkpoint: str,
    paths: Iterable[str],
    shapes: Mapping[str, tuple[int, ...]],
    inputs: str = "",
) -> dict[str, np.ndarray]:
    """Reads values from a checkpoint of this model.

    Args:
        checkpoint: The checkpoint's prefix.
        paths: Paths of the variables.
        shapes: Their shapes there, and those of others.
        inputs: What `model_fn` was given, in words. Defaults to nothing.

    Raises:
        ValueError: The checkpoint lacks a variable, or has it in another
            shape.
    """
    try:
        values = checkpoints.read(checkpoint, sorted(paths))
    except checkpoints.VariableNotFoundError as error:
        raise ValueError(
            f"The checkpoint {checkpoint!r} does not fit the model: {error} "
            "Restore the layer's name, or start in another model_dir."
        ) from error
    for path, value in values.items():
        if shapes.get(path, value.shape) != value.shape:
            raise ValueError(
                f"The variable {path!r} has shape "
                f"{shapes[path]} in model_fn, but "
                f"{value.shape} in the checkpoint {checkpoint!r}. Restore the "
                "layer's size, or start in another model_dir."
                + (f" model_fn was given {inputs}." if inputs else "")
            )
    # Devices may have no 64-bit numbers; the step never has.
    narrow = {
        path: jax.dtypes.canonicalize_dtype(value.dtype)
        for path, value in values.items()
    } | {GLOBAL_STEP: np.int32}
    return {
        path: value.astype(narrow[path], copy=False)
        for path, value in values.items()
    }


def assigned_by_init_fn(
    scaffold: Scaffold, values: AnyValues
) -> dict[str, np.ndarray]:
    """The initial values that a scaffold's `init_fn` sets."""
    session = InitSession(values)
    if scaffold.init_fn is not None:
        with without_tensors("init_fn"):
            scaffold.init_fn(scaffold, session)
    return session.assigned


def in_place_of(
    scaffold: Scaffold,
    values: AnyValues,
    checkpoint: str | None,
    variables: Mapping[str, keras.Variable],
) -> AnyValues:
    """The values that a scaffold wants in place of others.

    Args:
        scaffold: Says what is restored from which name.
        values: Values by path.
        checkpoint: Where names are read that are not among the values;
            `None` for nowhere.
        variables: The model's variables by path.

    Returns:
        The values by path of the variables that are to have them.

    Raises:
        ValueError: There is no such variable, or nothing of that name.
    """
    sources = scaffold.sources
    unknown = sources.keys() - variables.keys()
    if unknown:
        raise ValueError(
            "`variables_to_restore` should be about variables of the "
            f"model. Received others: {sorted(unknown)}. The model has "
            f"{sorted(variables)}."
        )
    missing = set(sources.values()) - values.keys()
    read: dict[str, np.ndarray] = {}
    if missing and checkpoint is not None:
        shapes = {path: tuple(v.shape) for path, v in variables.items()}
        read = read_checked(checkpoint, missing, shapes)
    elif missing:
        raise ValueError(
            "`variables_to_restore` names what training does not have: "
            f"{sorted(missing)}. It has {sorted(values)}."
        )
    known = {**values, **read}
    for path, name in sources.items():
        expected = tuple(variables[path].shape)
        if expected != tuple(known[name].shape):
            raise ValueError(
                f"`variables_to_restore` should give {path!r} values of "
                f"shape {expected}. Received {name!r} of shape "
                f"{tuple(known[name].shape)}. Map it to a variable of its "
                "own shape, such as its moving average."
            )
    return {path: known[name] for path, name in sources.items()}


def on_host(values: AnyValues) -> dict[str, np.ndarray]:
    """Copies of values, which training may use up in the meantime."""
    fetched = jax.device_get(dict(values))
    return {
        # What the CPU gives is the buffer itself.
        path: np.array(fetched[path]) if _is_on_cpu(value) else fetched[path]
        for path, value in values.items()
    }


def _is_on_cpu(value: jax.Array | np.ndarray) -> bool:
    if not isinstance(value, jax.Array):
        return True
    return any(device.platform == "cpu" for device in value.devices())
