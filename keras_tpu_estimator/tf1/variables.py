"""The variables of a graph in the store of a program, under TF1's names."""

import functools
from collections.abc import Collection

import jax
import keras
import numpy as np

from keras_tpu_estimator.program.store import GLOBAL_STEP
from keras_tpu_estimator.program.store import VariableStore
from keras_tpu_estimator.tf1.graph import ModelGraph
from keras_tpu_estimator.tracing import keras_internals
from keras_tpu_estimator.tracing.variables import AnyValues
from keras_tpu_estimator.tracing.variables import Values


def enter(store: VariableStore, model: ModelGraph) -> None:
    """Enters the variables that a graph is the first to have.

    Args:
        store: The program's variables.
        model: The graph.

    Raises:
        ValueError: One of them has another shape than in the graphs before.
    """
    new = {}
    for name, variable in model.variables.items():
        shape = tuple(variable.shape.as_list())
        if name not in store.variables:
            trainable = name in model.trainable
            dtype = np.dtype(variable.dtype.base_dtype.as_numpy_dtype)
            if jax.dtypes.canonicalize_dtype(dtype) != dtype:
                store.saved_dtypes[name] = dtype
            new[name] = _keras_variable(name, shape, dtype, trainable)
        elif tuple(store.variables[name].shape) != shape:
            raise ValueError(
                f"The variable {name!r} has shape {shape} in this call of "
                f"model_fn, but {tuple(store.variables[name].shape)} in the "
                "calls before. Give it the same in every mode, or another "
                "name."
            )
    if new:
        store.add(new, functools.partial(_initial_values, model, set(new)))


def _keras_variable(
    path: str, shape: tuple[int, ...], dtype: np.dtype, trainable: bool
) -> keras.Variable:
    """A variable that has no value yet."""
    stateless = keras.StatelessScope(initialize_variables=False)
    with keras_internals.fresh_names(), stateless:
        variable = keras.Variable(
            "zeros",
            shape=shape,
            dtype=jax.dtypes.canonicalize_dtype(dtype).name,
            trainable=trainable,
            name=path.rpartition("/")[2],
        )
    keras_internals.set_path(variable, path)
    return variable


def _initial_values(
    model: ModelGraph,
    own: Collection[str],
    paths: Collection[str],
    values: AnyValues,
) -> Values:
    """What the initializers of a graph make, in a session.

    Args:
        model: The graph.
        own: The variables whose initial values are those of this graph.
        paths: The variables that want initial values.
        values: Those of others, which initializers may read.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    wanted = [name for name in own if name in paths]
    if not wanted:
        return {}
    variables = model.variables
    known = [
        name for name in variables if name in values and name != GLOBAL_STEP
    ]
    # Else each operation of the graph would need a kernel for the CPU.
    options = v1.GraphOptions(place_pruned_graph=True)
    config = v1.ConfigProto(graph_options=options)
    with v1.Session(graph=model.graph, config=config) as session:
        session.run(
            [variables[name].initializer for name in known],
            {
                variables[name].initializer.inputs[1]: np.asarray(values[name])
                for name in known
            },
        )
        session.run(
            [v.initializer for n, v in variables.items() if n not in known]
        )
        made: Values = session.run({name: variables[name] for name in wanted})
    return jax.tree.map(jax.numpy.asarray, made)
