"""Where the values of a model's variables come from before its first step."""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from keras_tpu_estimator.engine.device import fitting, other_dtypes
from keras_tpu_estimator.engine.device.run_state import check_step
from keras_tpu_estimator.engine.device.variable_places import VariablePlaces
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP, VariableStore
from keras_tpu_estimator.files.formats.loading import load_checkpoint
from keras_tpu_estimator.files.formats.reader import CheckpointReader
from keras_tpu_estimator.files.warm_start.pairing import Described, cast, read_part
from keras_tpu_estimator.files.warm_start.settings import WarmStartSettings
from keras_tpu_estimator.files.warm_start.values import compared, values_of
from keras_tpu_estimator.ground.base.index_ranges import IndexRanges
from keras_tpu_estimator.ground.tracing.variable_classes import own_rows
from keras_tpu_estimator.ground.tracing.variables import AnyArraysByPath, ArraysByPath
from keras_tpu_estimator.spec.model_fn.scaffold import (
    InitSession,
    Scaffold,
    without_tensors,
)

_logger = logging.getLogger("keras_tpu_estimator")


def initial_values(
    store: VariableStore,
    places: VariablePlaces,
    wanted: set[str],
    known: AnyArraysByPath,
    warm_start: WarmStartSettings | None,
) -> AnyArraysByPath:
    """The values that variables begin with.

    Args:
        places: Where they lie. What lies over several cores is made there.
        wanted: Paths of those whose values are wanted.
        known: Values of others, which they may depend on.
        warm_start: Another model's checkpoint that some of them come from.
    """
    sharded = places.sharded(wanted)
    # Tables are made on all cores unless it is said where.
    has_places = bool(sharded or wanted & store.rows.keys())
    made_at = places.of(wanted) if has_places else None
    read: AnyArraysByPath = {}
    if warm_start is not None:
        read = _warm_values(store, places, wanted, warm_start)
    read = {
        **read,
        **_assigned_parts(store, places, sharded - known.keys() - read.keys()),
    }
    rest = wanted - read.keys()
    return {**store.initial_values(rest, {**known, **read}, made_at), **read}


def _assigned_parts(
    store: VariableStore, places: VariablePlaces, wanted: set[str]
) -> ArraysByPath:
    """What `init_from_checkpoint` has for what lies over several cores."""
    values = {}
    for path in wanted & store.target.sources.keys():
        source = store.target.sources[path]
        dtype = store.device_dtype(path)
        with source.reader.held_open():
            values[path] = places.put_by_part(
                path, _parts_of(source.reader, source.name, path, dtype)
            )
    return values


def _warm_values(
    store: VariableStore,
    places: VariablePlaces,
    wanted: set[str],
    settings: WarmStartSettings,
) -> AnyArraysByPath:
    """What variables take from another model's checkpoint."""
    weights = {path: store.as_saved(path) for path in store.weights()}
    reader, report = compared(settings, weights)
    _logger.info("%s", report)
    pairs = {p.path: p for p in report.matched if p.path in wanted}
    # Rows that words have elsewhere are found in the whole.
    remapped = settings.var_name_to_vocab_info or {}
    sharded = places.sharded(pairs.keys() - remapped.keys())
    with reader.held_open():
        whole = values_of(
            settings,
            weights,
            reader,
            [pair for path, pair in pairs.items() if path not in sharded],
        )
        parts = {
            path: places.put_by_part(
                path,
                functools.partial(read_part, reader, pairs[path], weights[path].dtype),
            )
            for path in sharded
        }
    return {**whole, **parts}


def restored_values(
    store: VariableStore,
    places: VariablePlaces,
    checkpoint: str,
    wanted: set[str],
    required: Iterable[str],
) -> ArraysByPath:
    """The values that a checkpoint has of variables, where they belong.

    Args:
        checkpoint: The checkpoint's prefix.
        wanted: Paths of those whose values are wanted, if they are there.
        required: Paths of those that have to be there.

    Raises:
        ValueError: The checkpoint lacks a variable, or has it in another
            shape.
    """
    _logger.info("Restoring parameters from %s", checkpoint)
    reader = load_checkpoint(checkpoint)
    return _read(
        store, places, reader, fitting.names_of(store, reader, wanted, required)
    )


def _read(
    store: VariableStore,
    places: VariablePlaces,
    reader: CheckpointReader,
    names: Mapping[str, str],
) -> ArraysByPath:
    """Reads values from a checkpoint of this model, to where they belong.

    What lies over several cores is read core by core.

    Raises:
        ValueError: The checkpoint lacks a variable, or has it in another
            shape.
    """
    there = fitting.described(store, reader, names)
    other_dtypes.tell(store, names, there)
    sharded = places.sharded(names)
    with reader.held_open():
        read = reader.get_tensors(
            [name for path, name in names.items() if path not in sharded]
        )
        if GLOBAL_STEP in names:
            check_step(int(read[names[GLOBAL_STEP]]), reader.path)
        whole = {
            path: cast(read[name], store.device_dtype(path), path, name, reader.path)
            for path, name in names.items()
            if path not in sharded
        }
        return places.put(whole) | {
            path: places.put_by_part(
                path,
                _parts_of(reader, names[path], path, store.device_dtype(path)),
            )
            for path in sharded
        }


def _parts_of(
    reader: CheckpointReader, name: str, path: str, dtype: np.dtype
) -> Callable[[IndexRanges], np.ndarray]:
    """Reads parts of a variable in a dtype."""
    return lambda box: cast(
        reader.get_part(name, box.slices), dtype, path, name, reader.path
    )


def assigned_by_init_fn(
    scaffold: Scaffold, values: AnyArraysByPath, store: VariableStore
) -> dict[str, np.ndarray]:
    """The initial values that a scaffold's `init_fn` sets."""
    session = InitSession(values, store.rows)
    if scaffold.init_fn is not None:
        with without_tensors("init_fn"):
            scaffold.init_fn(scaffold, session)
    return session.assigned


def in_place_of(
    scaffold: Scaffold,
    values: AnyArraysByPath,
    checkpoint: str | None,
    store: VariableStore,
    places: VariablePlaces,
) -> ArraysByPath:
    """The values that a scaffold wants in place of others.

    Args:
        scaffold: Says what is restored from which name.
        checkpoint: Where names are read that are not among the values;
            `None` for nowhere.

    Raises:
        ValueError: There is no such variable, or nothing of that name.
    """
    sources, variables = scaffold.sources, store.variables
    unknown = sources.keys() - variables.keys()
    if unknown:
        raise ValueError(
            "`variables_to_restore` should be about variables of the "
            f"model. Received others: {sorted(unknown)}. The model has "
            f"{sorted(variables)}."
        )
    missing = {p: name for p, name in sources.items() if name not in values}
    known: dict[str, Described] = {path: variables[path] for path in values}
    reader = None
    if missing and checkpoint is not None:
        reader = load_checkpoint(checkpoint)
        known |= reader.by_any_name() | known
    elif missing:
        raise ValueError(
            "`variables_to_restore` names what training does not have: "
            f"{sorted(missing.values())}. It has {sorted(values)}."
        )
    for path, name in sources.items():
        expected = tuple(variables[path].shape)
        if name in known and expected != tuple(known[name].shape):
            raise ValueError(
                f"`variables_to_restore` should give {path!r} values of "
                f"shape {expected}. Received {name!r} of shape "
                f"{tuple(known[name].shape)}. Map it to a variable of its "
                "own shape, such as its moving average."
            )
    read = {} if reader is None else _read(store, places, reader, missing)
    rest = {}
    for path, name in sources.items():
        if path in missing:
            continue
        value = values[name]
        if name in store.rows and path not in store.rows:
            value = own_rows(value, store.rows[name])
        rest[path] = other_dtypes.converted(store, path, name, value)
    return places.put(rest) | read
