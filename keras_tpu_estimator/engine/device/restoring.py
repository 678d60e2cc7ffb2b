"""The values of a model's variables before its first step.

They are initial values, values of another model's checkpoint, or values of this
model's checkpoint, which must have all variables in their shapes.
"""

import functools
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import jax
import numpy as np

from keras_tpu_estimator.api.model_fn.scaffold import (
    InitSession,
    Scaffold,
    without_tensors,
)
from keras_tpu_estimator.base.common import ledger
from keras_tpu_estimator.base.common.dtype_changes import as_dtype
from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.base.tracing.variable_classes import own_rows
from keras_tpu_estimator.base.tracing.variables import (
    AnyArraysByPath,
    ArraysByPath,
    is_seed,
)
from keras_tpu_estimator.engine.device.run_state import check_step
from keras_tpu_estimator.engine.device.variable_shardings import VariableShardings
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP, VariableStore
from keras_tpu_estimator.files.formats.loading import load_checkpoint
from keras_tpu_estimator.files.formats.reader import CheckpointReader
from keras_tpu_estimator.files.warm_start.pairing import (
    Described,
    can_hold,
    cast,
    read_part,
)
from keras_tpu_estimator.files.warm_start.settings import WarmStartSettings
from keras_tpu_estimator.files.warm_start.values import compared, values_of

_logger = logging.getLogger("keras_tpu_estimator")


def initial_values(
    store: VariableStore,
    shardings: VariableShardings,
    requested: set[str],
    known_values: AnyArraysByPath,
    warm_start: WarmStartSettings | None,
) -> AnyArraysByPath:
    """Returns the initial values of the `wanted` variables.

    Sharded variables are initialized on their cores. Initial values may use the `known`
    values of other variables, and `warm_start` has some of the values.
    """
    sharded = shardings.sharded(requested)
    # Embedding tables are made on all cores unless `made_at` has their shardings.
    has_shardings = bool(sharded or requested & store.rows.keys())
    made_at = shardings.by_path(requested) if has_shardings else None
    read: AnyArraysByPath = {}
    if warm_start is not None:
        read = _warm_values(store, shardings, requested, warm_start)
    read = {
        **read,
        **_assigned_parts(
            store, shardings, sharded - known_values.keys() - read.keys()
        ),
    }
    unread = requested - read.keys()
    return {**store.initial_values(unread, {**known_values, **read}, made_at), **read}


def _assigned_parts(
    store: VariableStore, shardings: VariableShardings, requested: set[str]
) -> ArraysByPath:
    """Returns values from `init_from_checkpoint` for sharded variables."""
    values = {}
    for path in requested & store.target.sources.keys():
        source = store.target.sources[path]
        dtype = store.device_dtype(path)
        with source.reader.held_open():
            values[path] = shardings.put_by_part(
                path, _parts_of(source.reader, source.name, path, dtype)
            )
    return values


def _warm_values(
    store: VariableStore,
    shardings: VariableShardings,
    requested: set[str],
    settings: WarmStartSettings,
) -> AnyArraysByPath:
    """Returns the values from another model's checkpoint."""
    weights = {path: store.as_saved(path) for path in store.weights()}
    rates = store.initial_values(store.constants & store.variables.keys())
    reader, report = compared(settings, weights, {p: float(rates[p]) for p in rates})
    _logger.info("%s.", report.summary)
    _logger.debug("%s", report)
    pairs = {p.path: p for p in report.matched if p.path in requested}
    # A vocabulary moves rows of the complete array.
    remapped = settings.var_name_to_vocab_info or {}
    sharded = shardings.sharded(pairs.keys() - remapped.keys())
    with reader.held_open():
        unsharded = values_of(
            settings,
            weights,
            reader,
            [pair for path, pair in pairs.items() if path not in sharded],
        )
        parts = {
            path: shardings.put_by_part(
                path,
                functools.partial(read_part, reader, pairs[path], weights[path].dtype),
            )
            for path in sharded
        }
    return {**unsharded, **parts}


def restored_values(
    store: VariableStore,
    shardings: VariableShardings,
    checkpoint: str,
    requested: set[str],
    required: Iterable[str],
) -> ArraysByPath:
    """Returns a checkpoint's values of variables, on the devices.

    Those of `wanted` are restored if the checkpoint has them. It raises `ValueError` if
    the checkpoint lacks a `required` variable, or has one in another shape.
    """
    _logger.info("Restoring parameters from %s", checkpoint)
    reader = load_checkpoint(checkpoint)
    return _read(store, shardings, reader, names_of(store, reader, requested, required))


def _read(
    store: VariableStore,
    shardings: VariableShardings,
    reader: CheckpointReader,
    names: Mapping[str, str],
) -> ArraysByPath:
    """Reads a checkpoint to the devices, and sharded variables core by core."""
    _warn_of_other_dtypes(store, names, described(store, reader, names))
    sharded = shardings.sharded(names)
    with reader.held_open():
        read = reader.get_tensors(
            [name for path, name in names.items() if path not in sharded]
        )
        if GLOBAL_STEP in names:
            check_step(int(read[names[GLOBAL_STEP]]), reader.path)
        unsharded = {
            path: cast(read[name], store.device_dtype(path), path, name, reader.path)
            for path, name in names.items()
            if path not in sharded
        }
        return shardings.put(unsharded) | {
            path: shardings.put_by_part(
                path,
                _parts_of(reader, names[path], path, store.device_dtype(path)),
            )
            for path in sharded
        }


def _parts_of(
    reader: CheckpointReader, name: str, path: str, dtype: np.dtype
) -> Callable[[IndexRanges], np.ndarray]:
    """Returns a function that reads slices of a variable in a dtype."""
    return lambda box: cast(
        reader.get_part(name, box.slices), dtype, path, name, reader.path
    )


def assigned_by_init_fn(
    scaffold: Scaffold, values: AnyArraysByPath, store: VariableStore
) -> dict[str, np.ndarray]:
    """Returns the initial values that a scaffold's `init_fn` sets."""
    session = InitSession(values, store.rows)
    if scaffold.init_fn is not None:
        with without_tensors("init_fn"):
            scaffold.init_fn(scaffold, session)
    return session.assigned


def replacements(
    scaffold: Scaffold,
    values: AnyArraysByPath,
    checkpoint: str | None,
    store: VariableStore,
    shardings: VariableShardings,
) -> ArraysByPath:
    """Returns the values that a scaffold's `variables_to_restore` replaces.

    A checkpoint, if given, has the names that are not among the values. It raises
    `ValueError` if the model lacks a variable, or if the name does not exist.
    """
    sources, variables = scaffold.sources, store.variables
    unknown = sources.keys() - variables.keys()
    if unknown:
        raise ValueError(
            "`variables_to_restore` must only contain variables of the model. "
            f"Received others: {sorted(unknown)}. Use some of "
            f"{sorted(variables)}."
        )
    missing = {p: name for p, name in sources.items() if name not in values}
    by_name: dict[str, Described] = {path: variables[path] for path in values}
    reader = None
    if missing and checkpoint is not None:
        reader = load_checkpoint(checkpoint)
        by_name |= reader.by_any_name() | by_name
    elif missing:
        raise ValueError(
            "`variables_to_restore` must name variables that training has. "
            f"Received: {sorted(missing.values())}. Use some of "
            f"{sorted(values)}."
        )
    for path, name in sources.items():
        expected = tuple(variables[path].shape)
        if name in by_name and expected != tuple(by_name[name].shape):
            raise ValueError(
                f"`variables_to_restore` must map {path!r} to values of "
                f"shape {expected}. Received {name!r} of shape "
                f"{tuple(by_name[name].shape)}. Map it to a variable of the "
                "same shape, such as its moving average."
            )
    read = {} if reader is None else _read(store, shardings, reader, missing)
    converted = {}
    for path, name in sources.items():
        if path in missing:
            continue
        value = values[name]
        if name in store.rows and path not in store.rows:
            value = own_rows(value, store.rows[name])
        converted[path] = _converted(store, path, name, value)
    return shardings.put(converted) | read


def _warn_of_other_dtypes(
    store: VariableStore,
    names: Mapping[str, str],
    stored: Mapping[str, Described],
) -> None:
    """Warns about variables whose dtype differs between the checkpoint and the model.

    `names` maps the variables' paths to names in the checkpoint. 64-bit numbers cause
    no warning where devices lack them.
    """
    other = [
        path
        for path, name in names.items()
        if path != GLOBAL_STEP and _on_devices(stored[name]) != store.device_dtype(path)
    ]
    if other:
        _logger.warning(
            "%d of %d variables are restored in another dtype than the "
            "checkpoint's, such as %r in %s instead of %s.",
            len(other),
            len(names),
            other[0],
            store.device_dtype(other[0]),
            np.dtype(stored[names[other[0]]].dtype),
        )


def _converted(
    store: VariableStore, path: str, name: str, value: jax.Array | np.ndarray
) -> jax.Array | np.ndarray:
    """Returns a value in the dtype of another variable, if that can represent it."""
    dtype, value_dtype = store.device_dtype(path), np.dtype(value.dtype)
    is_integer = np.issubdtype(dtype, np.integer)
    if can_hold(dtype, value_dtype) and (
        not is_integer or np.can_cast(value_dtype, dtype)
    ):
        return as_dtype(value, dtype, f"The value of {name!r}")
    raise ValueError(
        f"`variables_to_restore` must map {path!r} to values that {dtype} can "
        f"represent. Received {name!r} of dtype {value_dtype}. Map it to a variable of "
        "the same dtype."
    )


def _on_devices(stored: Described) -> np.dtype:
    dtype = np.dtype(stored.dtype)
    is_wide = dtype.kind in "iuf" and dtype.itemsize == 8
    return jax.dtypes.canonicalize_dtype(dtype) if is_wide else dtype


@ledger.restoring
def check_fits(
    store: VariableStore,
    checkpoint: str,
    requested: set[str],
    required: Iterable[str],
) -> None:
    """Checks a checkpoint as `restored_values` does, without reading values."""
    reader = load_checkpoint(checkpoint)
    described(store, reader, names_of(store, reader, requested, required))


def names_of(
    store: VariableStore,
    reader: CheckpointReader,
    requested: set[str],
    required: Iterable[str],
) -> dict[str, str]:
    """Returns the names to read from a checkpoint, by path, weights first.

    It need not have seeds, because the modes that saved it may draw no numbers.
    """
    stored = reader.get_variable_to_shape_map().keys()
    saved = set(store.saved_paths())
    needed = {path for path in required if not is_seed(store.variables[path])}
    # A checkpoint has a learning rate only if a callback has set it.
    paths = requested & saved & (needed | stored)
    paths |= requested & stored & store.constants
    # The error must name the weight, not its optimizer state.
    ordered = sorted(paths, key=lambda path: (path in store.slots, path))
    return {path: path for path in ordered}


def described(
    store: VariableStore, reader: CheckpointReader, names: Mapping[str, str]
) -> Mapping[str, Described]:
    """Checks the variables' presence and shapes, and describes them by name."""
    stored = reader.by_any_name()
    missing = [name for name in names.values() if name not in stored]
    if missing:
        raise ValueError(
            f"The checkpoint {reader.path!r} does not fit the model: "
            f"{reader.explain_missing(missing)} "
            f"{_advice(missing, stored.keys() - names.values())}"
        )
    input_note = f" model_fn received {store.inputs}." if store.inputs else ""
    for path, name in names.items():
        expected = tuple(store.variables[path].shape)
        if stored[name].shape != expected:
            raise ValueError(
                f"The variable {path!r} has shape "
                f"{expected} in model_fn, but "
                f"{stored[name].shape} in the checkpoint {reader.path!r}. "
                "Restore the layer's size, or start in another model_dir."
                f"{input_note}"
            )
    return stored


def _advice(missing: Iterable[str], unused: Iterable[str]) -> str:
    """Returns the advice for missing variables, given the checkpoint's unused names."""
    if _counted(missing) <= _counted(unused):
        return (
            "It has all of them under other counts, because Keras numbers "
            "automatic names within a process. Give the model and its layers a "
            "`name`, or call keras.utils.clear_session() before you make them."
        )
    return "Restore the layer's name, or start in another model_dir."


def _counted(names: Iterable[str]) -> Counter[str]:
    """Counts the names without the numbers at their ends.

    Example:

    >>> _counted(["dense_1/kernel", "adam/dense_2_kernel_velocity"])
    Counter({'dense/kernel': 1, 'adam/dense_kernel_velocity': 1})
    """
    return Counter(re.sub(r"_[0-9]+(?=[/_]|$)", "", name) for name in names)
