"""The variables of a graph in the store of a program, under TF1's names."""

import collections
import functools
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.base.common.dtype_changes import as_dtype
from keras_tpu_estimator.base.common.tensorflow_session import host_session
from keras_tpu_estimator.base.tracing.variable_classes import without_value
from keras_tpu_estimator.base.tracing.variables import AnyArraysByPath, ArraysByPath
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP, VariableStore
from keras_tpu_estimator.tf1.graph.definitions import reachable
from keras_tpu_estimator.tf1.graph.internals import static_value
from keras_tpu_estimator.tf1.graph.model_graph import ModelGraph
from keras_tpu_estimator.tf1.graph.sessions import load_values

# No TensorFlow variable can have such a name.
SEED = "<seed>"
# The number of runs since the global step changed.
REPEATS = "<repeats>"
# The global step at the last run of a hook's operations on a batch, and the number of
# these runs at this step.
BATCH_RUNS = "<batch runs>"

_logger = logging.getLogger("keras_tpu_estimator")


def enter(
    store: VariableStore,
    model: ModelGraph,
    local: Collection[str],
    on_host: Collection[str],
) -> None:
    """Enters the new variables of a graph, with the local variables of its step.

    Those `on_host` are NumPy arrays until a step reads them.
    """
    new = {}
    local_variables = {name: model.local[name] for name in local}
    variables = {**local_variables, **model.variables}
    store.on_host -= variables.keys() - {*on_host}
    for name, variable in variables.items():
        shape = tuple(variable.shape.as_list())
        if name not in store.variables:
            dtype = np.dtype(variable.dtype.base_dtype.as_numpy_dtype)
            on_devices = jax.dtypes.canonicalize_dtype(dtype)
            if on_devices != dtype:
                store.saved_dtypes[name] = dtype
                if name in on_host:
                    store.on_host.add(name)
            new[name] = without_value(
                name,
                shape=shape,
                dtype=on_devices.name,
                trainable=name in model.trainable,
                # Metric variables belong to one call, and are in no checkpoint.
                synchronization="on_read" if name in local_variables else "auto",
            )
        elif tuple(store.variables[name].shape) != shape:
            raise ValueError(
                f"The variable {name!r} has shape {shape} in this call of "
                f"model_fn, but {tuple(store.variables[name].shape)} in the "
                "calls before. Give it the same in every mode, or another "
                "name."
            )
    if new:
        store.add(
            new, functools.partial(_initial_values, model, set(new), store.on_host)
        )


def collections_of(model: ModelGraph) -> dict[str, tuple[str, ...]]:
    """Returns the names of saved variables by the collections that contain them.

    The collection of all variables is not included.
    """
    import tensorflow as tf

    names = {GLOBAL_STEP, *model.variables}
    by_key = {}
    for key in model.graph.get_all_collection_keys():
        if not isinstance(key, str) or key == tf.compat.v1.GraphKeys.GLOBAL_VARIABLES:
            continue
        members = tuple(
            item.op.name
            for item in model.graph.get_collection(key)
            if isinstance(item, tf.Variable) and item.op.name in names
        )
        if members:
            by_key[key] = members
    return by_key


def is_wide(variable: Any) -> bool:
    """Returns whether devices cannot hold a variable in its dtype."""
    dtype = np.dtype(variable.dtype.base_dtype.as_numpy_dtype)
    return bool(jax.dtypes.canonicalize_dtype(dtype) != dtype)


def enter_seed(store: VariableStore, seed: int) -> None:
    """Enters the seed of random ops.

    If a random seed were a constant, XLA would compile again for each process.
    """
    # It belongs to one call, so that it is in no checkpoint.
    variable = without_value(
        SEED,
        shape=(),
        dtype="uint32",
        trainable=False,
        synchronization="on_read",
    )
    value = jax.numpy.uint32(seed % 2**32)
    store.add({SEED: variable}, lambda paths, values, shardings: {SEED: value})


def enter_repeats(store: VariableStore) -> None:
    """Enters the number of runs since the global step changed.

    Random ops also depend on it. A checkpoint follows a change of the step, so the
    number is zero again when training resumes.
    """
    _enter_counter(store, REPEATS, ())


def enter_batch_runs(store: VariableStore) -> None:
    """Enters the number of a hook's runs, on which random ops also depend."""
    _enter_counter(store, BATCH_RUNS, (2,))


def _enter_counter(store: VariableStore, name: str, shape: tuple[int, ...]) -> None:
    if name in store.variables:
        return
    variable = without_value(
        name,
        shape=shape,
        dtype="uint32",
        trainable=False,
        synchronization="on_read",
    )
    store.add(
        {name: variable},
        # A new array for each call of `train`, because steps donate it.
        lambda paths, values, shardings: {name: jax.numpy.zeros(shape, "uint32")},
    )


def _initial_values(
    model: ModelGraph,
    names: Collection[str],
    on_host: Collection[str],
    paths: Collection[str],
    values: AnyArraysByPath,
    shardings: object = None,
) -> ArraysByPath:
    """Returns the initial values of a graph's variables `names`, some `on_host`.

    A session computes them unsharded, whatever their `shardings`. Initializers may read
    the `values` of other variables.
    """
    del shardings
    requested = [name for name in names if name in paths]
    if not requested:
        return {}
    variables = {**model.local, **model.variables}
    constants = _constants({n: variables[n] for n in requested if n not in on_host})
    drawn = [name for name in requested if name not in constants]
    initializers = {
        name: variables[name].initializer
        for name in _needed(model.graph, variables, drawn)
    }
    existing = {
        name: values[name]
        for name in initializers
        if name in values and name != GLOBAL_STEP
    }
    drawing = [initializers[name] for name in drawn]
    _report(model.graph, drawing, len(requested))
    with host_session(model.graph) as session:
        load_values(session, variables, existing)
        session.run(
            [op for n, op in initializers.items() if n not in existing],
            model.scaffold.init_feed_dict if drawn else None,
        )
        computed = session.run({name: variables[name] for name in drawn})
    local = [name for name in requested if name in model.local]
    if local and model.scaffold.local_init is not None:
        initial = {**constants, **computed, **values}
        computed |= model.scaffold.local_init.values(
            model.variables, model.local, initial, local
        )
    # `jax.numpy` would compile a copy for each shape.
    fitting = {
        name: as_dtype(
            value,
            jax.dtypes.canonicalize_dtype(value.dtype),
            f"The initial value of {name!r}",
        )
        for name, value in {**constants, **computed}.items()
        if name not in on_host
    }
    copied: ArraysByPath = jax.device_put(fitting)
    host_values = {n: v for n, v in {**constants, **computed}.items() if n in on_host}
    return {**copied, **host_values}


def _constants(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the initial values that need no session, such as those of most slots."""
    constants = {}
    for name, variable in variables.items():
        value = _constant(variable.initializer.inputs[1])
        if value is not None:
            constants[name] = value
    return constants


def _constant(tensor: Any) -> np.ndarray | jax.Array | None:
    """Returns the value of a tensor, or `None` if it varies."""
    if tensor.op.type != "Fill":
        value: np.ndarray | None = static_value(tensor)
        return value
    # A constant would be made on the host, and then copied.
    shape, number = map(static_value, tensor.op.inputs)
    if shape is None or number is None:
        return None
    dtype = jax.dtypes.canonicalize_dtype(number.dtype)
    name = f"The initial value {tensor.op.name!r}"
    return jax.numpy.full(tuple(shape), as_dtype(number, dtype, name))


def _report(graph: Any, initializers: Sequence[Any], total: int) -> None:
    """Logs how many variables are initialized from each checkpoint."""
    # A separate operation reads each value.
    counts = collections.Counter(
        static_value(op.inputs[0]).item().decode()
        for op in reachable(graph, initializers)
        if op.type == "RestoreV2"
    )
    for path, count in counts.items():
        _logger.info(
            "Initial values of %d of %d variables: %s",
            count,
            total,
            path,
        )


def _needed(
    graph: Any, variables: Mapping[str, Any], names: Collection[str]
) -> set[str]:
    """Returns the variables that initializers assign or read."""
    needed: set[str] = set()
    more = set(names)
    while more - needed:
        needed |= more
        ops = reachable(graph, [variables[n].initializer for n in needed])
        more = {op.name for op in ops if op.type == "VarHandleOp"}
    return needed
