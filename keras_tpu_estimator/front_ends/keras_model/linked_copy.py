"""A copy of a Keras model, for callbacks that read and assign its layers."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import keras


class LinkedCopy:
    """A copy of a model whose assignments also reach variables of the same paths."""

    def __init__(self, model: keras.Model, variables: Mapping[str, keras.Variable]):
        self._model = model
        self._assign: dict[str, Callable[[Any], Any]] = {}
        for variable in model.variables:
            if (linked := variables.get(variable.path)) is not None:
                assign = self._assign[variable.path] = variable.assign
                variable.assign = functools.partial(_assign_both, assign, linked)

    def updated(self, values: Mapping[str, jax.Array]) -> keras.Model:
        """Returns the copy after it receives values by path."""
        for path in self._assign.keys() & values.keys():
            self._assign[path](values[path])
        return self._model


def _assign_both(
    assign: Callable[[Any], Any], linked: keras.Variable, value: Any
) -> Any:
    linked.assign(value)
    return assign(value)
